"""Rules for assets that no rule knows: drafted from their names and from what was measured. Pure.

A draft is text for people. It is never applied by itself: what a build is for, and which systems
have the libraries that it needs, is decided by a person.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from tsuku_publish.archives.contents import SERVERS, Contents
from tsuku_publish.upstream.classify import Rules
from tsuku_publish.upstream.facts import Asset, UpstreamRelease

_SYSTEMS = {"ubuntu": "linux", "linux": "linux", "win": "windows", "macos": "darwin"}
_PROCESSORS = {
    "x64": "amd64", "amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64",
    "s390x": "s390x",
}  # fmt: skip
_BACKENDS = {
    "vulkan": "vulkan", "cuda": "cuda", "rocm": "rocm", "hip": "rocm", "sycl": "sycl",
    "openvino": "openvino", "opencl": "opencl", "metal": "metal",
}  # fmt: skip
_GUARDS = {
    "vulkan": "vulkan", "sycl": "level-zero", "openvino": "openvino", "opencl": "adreno",
    "metal": "metal",
}  # fmt: skip
"""Backends whose requirement is one table of ``[requires]``, the same for every version."""
_LIBRARY = re.compile(r"(?:lib)?ggml-([a-z]+)\.(?:so|dll|dylib)")
_LINE = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NO_BUILD = re.compile(
    r"""(?ix) .*? (?:
      (?P<signature> \.(?:asc|sig|minisig|pem|crt|sigstore(?:\.json)?|intoto\.jsonl))
    | (?P<digests> \.(?:md5|sha\d*) | (?:^|[-_.])(?:sha\d+sums?|md5sums?|checksums?)(?:\.txt)?)
    | (?P<list> \.(?:json|txt|md|spdx|cdx))
    | (?P<package> \.(?:deb|rpm|apk|msi|msix|pkg|dmg|appimage|flatpak|snap)) )"""
)
_KINDS = {
    "signature": "a signature", "digests": "a list of digests", "list": "a text",
    "package": "a package for a system's installer",
}  # fmt: skip


def no_build(name: str) -> str:
    """Return why an asset is no build of upstream, by its name; empty if it may be one."""
    found = _NO_BUILD.fullmatch(name)
    return f"it is no build, but {_KINDS[str(found.lastgroup)]}" if found else ""


def drafted_rule(
    asset: Asset, release: UpstreamRelease, rules: Rules, contents: Contents | None
) -> str:
    """Return TOML text to be reviewed and added to ``rules.toml``; empty for a companion.

    Without ``contents`` nothing was measured, and the text says so.
    """
    if asset.name.startswith("cudart-"):
        return ""  # it belongs to the draft of its build
    pattern = asset.name.replace(release.tag, "{tag}")
    head = f"# Drafted from {asset.name}. {_measured(contents)}\n"
    why = ""
    if contents is not None and not contents.brings & {*SERVERS}:
        why = "it has no llama-server"
    elif not asset.name.endswith((".tar.gz", ".zip")):
        why = "clients cannot unpack it"
        head += "# Its builds are lost with it.\n"
    if why:
        return f'{head}[[skip]]\nasset = "{pattern}"\nwhy = "{why}"\n'
    words = re.split(r"-|\.tar\.gz$|\.zip$", asset.name)
    backend = _backend(words, contents)
    # The version of its toolkit, if it has one.
    line = next((word for word in words if _LINE.fullmatch(word)), "")
    lacks_line = backend in ("cuda", "rocm") and not line
    line = "VERSION" if lacks_line else line
    system, processor = _platform(words, contents)
    name = f"{backend}-{line}" if line else backend
    # Of an asset that no source has; the tables of systems are a repository's own, if it has any.
    table = _system_table(system, processor, rules, contents)
    needs = [table] if table in rules.requires else []
    needs += [_GUARDS[backend]] if backend in _GUARDS else []
    tables = []
    if backend in ("cuda", "rocm"):
        needs.append(f"{name}-{system}" if backend == "rocm" else name)
        if needs[-1] not in rules.requires:
            tables = [f'[requires."{needs[-1]}"]', _code(backend, line, contents), ""]
    variant = f'name = "{name}", backend = "{backend}", requires = {json.dumps(needs)}'
    # The archive of the CUDA runtime that belongs to this build.
    tagless = asset.name.replace(f"-{release.tag}", "")
    companions = {f"cudart-{asset.name}", f"cudart-{tagless}"}
    companion = next((each.name for each in release.assets if each.name in companions), "")
    lines = [
        *tables,
        "[[rule]]",
        f'asset = "{pattern}"',
        *([f'companion = "{companion.replace(release.tag, "{tag}")}"'] if companion else ()),
        f'platform = "{system}-{processor}"',
        f"variants = [{{ {variant} }}]",
    ]
    if lacks_line:
        # Without a version no client would understand the rule.
        lines = ["# The name has no version: write it for VERSION.", *map("# {}".format, lines)]
    return head + "\n".join(lines) + "\n"


def drafted_libraries(asset: str, libraries: Collection[str]) -> str:
    """Return TOML text for ``rules.toml``: libraries that a build needs and does not bring."""
    return (
        f"# Needed by {asset}. Clients look for them on each machine, before the download.\n"
        f"[[library]]\nnames = {json.dumps(sorted(libraries))}\n"
        'source = "whose package brings them"\n'
    )


def _measured(contents: Contents | None) -> str:
    if contents is None:
        return "It was not measured."
    floors = [f"{name} {floor}" for name, floor in contents.floors.items()]
    parts = [f"{len(contents.listing['files'])} files", *floors]
    if contents.libraries:
        parts.append(f"needs {' '.join(contents.libraries)}")
    if contents.processors:
        parts.append(f"processors {' '.join(contents.processors)}")
    return f"Measured: {', '.join(parts)}."


def _platform(words: list[str], contents: Contents | None) -> tuple[str, str]:
    """Return the system and the processor that its server's header says, else the name."""
    named = (
        next((_SYSTEMS[word] for word in words if word in _SYSTEMS), "linux"),
        next((_PROCESSORS[word] for word in words if word in _PROCESSORS), "amd64"),
    )
    servers = (contents.servers if contents else None) or {}
    found = sorted({platform for each in servers.values() for platform in each})
    if not found or "-".join(named) in found:
        return named
    system, _, processor = found[0].partition("-")
    return system, processor


def _backend(words: list[str], contents: Contents | None) -> str:
    """Return the backend that the name says, else the one that its libraries say."""
    named = next((_BACKENDS[word] for word in words if word in _BACKENDS), None)
    if named or contents is None:
        return named or "cpu"
    libraries = filter(None, map(_LIBRARY.fullmatch, sorted(contents.brings)))
    found = [_BACKENDS[each[1]] for each in libraries if each[1] in _BACKENDS]
    return found[0] if found else "cpu"


def _system_table(system: str, processor: str, rules: Rules, contents: Contents | None) -> str:
    """Return the table of what the system must have: the known one with the nearest floors."""
    if system == "windows":
        return "windows"
    if system == "darwin":
        return "macos-arm64" if processor == "arm64" else "macos-x64"
    floor = (contents.floors if contents else {}).get("glibc", "99")
    known = {name: table["glibc"] for name, table in rules.requires.items() if "glibc" in table}
    enough = {name: each for name, each in known.items() if _number(each) >= _number(floor)}
    # Measured floors replace those of the table, so a near one is good enough.
    chosen = min(enough, key=lambda each: _number(enough[each]), default=None)
    return chosen or max(known, key=lambda each: _number(known[each]), default="")


def _code(backend: str, line: str, contents: Contents | None) -> str:
    if backend == "cuda":
        found: Any = next(iter(contents.device_code.values()), None) if contents else None
        code: Mapping[str, list[str]] = found or {"sass": [], "ptx": []}
        lists = f"sass = {json.dumps(code['sass'])}, ptx = {json.dumps(code['ptx'])}"
        return f'cuda = {{ toolkit = "{line}", {lists} }}'
    targets = next(iter(contents.gfx.values()), []) if contents else []
    return f'rocm = {{ runtime = "{line}", gfx = {json.dumps(targets)} }}'


def _number(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
