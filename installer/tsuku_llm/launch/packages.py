"""The packages that contain a missing library, by family of distributions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tsuku_llm.backends import TABLE

_COMMANDS = {
    "debian": "apt install",
    "fedora": "dnf install",
    "arch": "pacman -S",
    "suse": "zypper install",
}

_FAMILIES = {
    **dict.fromkeys(("debian", "ubuntu"), "debian"),
    **dict.fromkeys(("fedora", "rhel", "centos"), "fedora"),
    "arch": "arch",
    **dict.fromkeys(("suse", "opensuse", "sles"), "suse"),
}

# By the beginning of the library's name, as versions follow it (libssl.so.3).
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "libgomp": {
        "debian": "libgomp1",
        "fedora": "libgomp",
        "arch": "gcc-libs",
        "suse": "libgomp1",
    },
    "libstdc++": {
        "debian": "libstdc++6",
        "fedora": "libstdc++",
        "arch": "gcc-libs",
        "suse": "libstdc++6",
    },
    "libgcc_s": {
        "debian": "libgcc-s1",
        "fedora": "libgcc",
        "arch": "gcc-libs",
        "suse": "libgcc_s1",
    },
    "libssl": {
        "debian": "libssl3",
        "fedora": "openssl-libs",
        "arch": "openssl",
        "suse": "libopenssl3",
    },
    "libcrypto": {
        "debian": "libssl3",
        "fedora": "openssl-libs",
        "arch": "openssl",
        "suse": "libopenssl3",
    },
    "libcurl": {
        "debian": "libcurl4",
        "fedora": "libcurl",
        "arch": "curl",
        "suse": "libcurl4",
    },
    **{library: names for row in TABLE for library, names in row.packages.items()},
}

_REINSTALL = "install it again: tsuku-llm install --force"

_ADVICE = {
    **dict.fromkeys(("libggml", "libllama", "libmtmd"), _REINSTALL),
    **{library: fix for row in TABLE for library, fix in row.library_fixes.items()},
}
"""Advice for libraries that do not come from a distribution's package."""


def package_of(library: str, distribution: str) -> str:
    """Say how to get a missing library; ``distribution`` is a family, or "" for all of them."""
    name = library.rsplit("/", 1)[-1]
    # The longest key wins, so that a more special row counts first.
    key = max((key for key in (*_PACKAGES, *_ADVICE) if name.startswith(key)), key=len, default="")
    if key in _ADVICE:
        return _ADVICE[key]
    packages = _PACKAGES.get(key)
    if packages is None:
        return f"install the package of your distribution that has {name}"
    if distribution in packages:
        return f"run: {_COMMANDS[distribution]} {packages[distribution]}"
    names = ", ".join(f"{package} ({family})" for family, package in packages.items())
    return f"install it: {names}"


def family_of(release_file: str) -> str:
    """Return the family in an ``os-release`` file: its ``ID`` first, then its ``ID_LIKE``."""
    words: dict[str, list[str]] = {}
    for line in release_file.splitlines():
        key, _, value = line.partition("=")
        words[key] = value.strip("\"'").lower().split()
    ids = (*words.get("ID", ()), *words.get("ID_LIKE", ()))
    # Only the first part counts in ids such as "opensuse-leap".
    stems = (word.partition("-")[0] for word in ids)
    return next((_FAMILIES[stem] for stem in stems if stem in _FAMILIES), "")
