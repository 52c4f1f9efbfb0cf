"""Bases: zig, or the root file system of an older system, by name or as a folder."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError, did_you_mean
from tsuku_llm.ground.files import rename
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import printable
from tsuku_publish.building.matrix import BaseSystem, BuildMatrix, NewerTools, Words, Zig
from tsuku_publish.building.newer import add_newer, newer_tools
from tsuku_publish.building.place import SHARED, Base, ToolPlace, ZigPlace
from tsuku_publish.building.recipe import backends_of
from tsuku_publish.building.running import run_logged, run_pip
from tsuku_publish.errors import MissingTools, PublishError

_FOLDER = "bases"
_FAMILY = "debian"
_MIRROR = "DEBOOTSTRAP_MIRROR"
_UNSHARED = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
_ADMINISTRATORS = "/usr/sbin:/sbin"
_SHELL = Path("/bin/sh")
_ELF_HEADER = 20
_ARCHITECTURES = {62: "amd64", 183: "arm64", 22: "s390x"}
"""By the number that each ELF file has of its machine."""

_COMPILER = """#!/bin/sh
exec "${{0%/*}}/../ziglang/zig" {language} -target {target} "$@"
"""


@documented("name", "root", "packages")
@dataclass(frozen=True, slots=True)
class WantedBase:
    """A base as it is named, with what a build needs in it.

    ``system`` is None for a folder of the user's, which is used as it is. Else ``installed`` are
    the packages that debootstrap, or pip for zig, puts into it, and ``root`` is there when it is
    complete. One folder with zig serves every base of zig.
    """

    name: str
    root: Path
    system: BaseSystem | Zig | None
    installed: Words
    newer: tuple[NewerTools, ...] = ()

    @property
    def packages(self) -> Words:
        """The packages, those of newer suites as ``glslc/trixie``."""
        later = [
            f"{name}/{row.suite}" for row in self.newer for name in row.programs + row.packages
        ]
        return (*self.installed, *dict.fromkeys(later))


def wanted_base(
    word: str, variant: str, matrix: BuildMatrix, work: Path, platform: str
) -> WantedBase:
    """Return the base that a word names for a variant: a row of the data, else a folder.

    Each set of packages has its own root, so no build depends on what was built before it.
    Raises ``UsageError``.
    """
    if word in matrix.zig.bases:
        return _wanted_zig(word, variant, matrix, work.absolute() / _FOLDER, platform)
    system = matrix.bases.get(word)
    if system is None:
        if not Path(word).is_dir():
            names = (*matrix.bases, *matrix.zig.bases)
            known = f"bases: {', '.join(names)}"
            otherwise = "name one of them, or a folder with the root file system of your own"
            hint = did_you_mean(word, names, otherwise)
            raise UsageError(f"{word} is no base and no folder", facts=(known,), hint=hint)
        return WantedBase(word, Path(word).absolute(), None, ())
    newer = newer_tools(variant, word, system)
    # Either of Ninja and make builds.
    names = matrix.tools_of(backends_of(variant, matrix))
    tools = [matrix.tools[name] for name in names if name != "make"]
    named = {tool.packages[_FAMILY] for tool in tools if _FAMILY in tool.packages}
    # The base's own suite may not even have what a newer one brings.
    brought = {name for row in newer for name in row.programs + row.packages}
    needed = {name for row in newer for name in row.needs}
    packages = tuple(sorted((named - brought) | {*system.packages} | needed))
    content = "\n".join((system.suite, *packages, *map(str, newer)))
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    return WantedBase(word, work.absolute() / _FOLDER / f"{word}-{key}", system, packages, newer)


def _wanted_zig(
    word: str, variant: str, matrix: BuildMatrix, folder: Path, platform: str
) -> WantedBase:
    zig = matrix.zig
    if platform != zig.platform:
        raise UsageError(
            f"the base {word} is not for {platform}",
            facts=(f"it is for: {zig.platform}",),
            hint="name a folder with the root file system of your own: --base FOLDER",
        )
    if not {*backends_of(variant, matrix)} <= {*zig.backends}:
        raise UsageError(
            f"{variant} cannot be built in the base {word}",
            facts=(f"it can build: {', '.join(zig.backends)}",),
            hint="build it without --base, or in a folder of your own that has its tools",
        )
    key = hashlib.sha256(repr((zig.sha256, _compilers(zig))).encode()).hexdigest()[:12]
    return WantedBase(word, folder / f"zig-{zig.version}-{key}", zig, (zig.requirement,))


def make_base(wanted: WantedBase, environ: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Make the root of a base with debootstrap, or fetch zig; it gets its name when it is complete.

    The caller holds the work folder. Raises ``MissingTools``, ``PublishError`` without the rights,
    ``BuildFailed`` with debootstrap's, apt's or pip's last lines, ``NoSpace``, and the errors of
    the disk.
    """
    if isinstance(wanted.system, Zig):
        _make_zig(wanted, wanted.system, environ, tell)
        return
    assert wanted.system is not None
    _require("debootstrap", "debootstrap", "makes the base")
    _require("unshare", "util-linux", "keeps debootstrap's mounts apart")
    # Debootstrap takes minutes: a machine that forbids the sandbox says so before.
    _require_sandbox(Base(Path("/")))
    if os.geteuid() != 0:
        raise PublishError(
            f"only root can make the base {wanted.name}: debootstrap changes owners and mounts",
            hint="build as root, or name a folder with a root file system, such as an exported "
            "container image: --base FOLDER",
        )
    folder = wanted.root.parent
    kept = folder / "packages"
    with disk_errors("making a folder", folder):
        kept.mkdir(parents=True, exist_ok=True)
    beside = wanted.root.with_name(f".{wanted.root.name}.new")
    log = folder / f"{wanted.root.name}.log"
    tell(f"{wanted.name}: making it in {wanted.root}, once; its log is {log}")
    with disk_errors("removing what is left of an earlier run", beside):
        # It has no mounts: those of a killed debootstrap ended with its namespace.
        if beside.exists():
            shutil.rmtree(beside)
        log.unlink(missing_ok=True)
    proxies = {name: value for name, value in environ.items() if name.lower() in _PROXIES}
    path = f"{environ.get('PATH', '')}:{_ADMINISTRATORS}"
    given = {**proxies, "PATH": path, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    run_logged(
        [
            *(*_UNSHARED, "debootstrap", "--variant=minbase", "--force-check-gpg"),
            *(f"--include={','.join(wanted.installed)}", f"--cache-dir={kept}"),
            *(wanted.system.suite, str(beside), *filter(None, [environ.get(_MIRROR)])),
        ],
        doing=f"making the base {wanted.name}",
        log=log,
        folder=folder,
        environ=given,
    )
    for row in wanted.newer:
        add_newer(row, beside, kept, log, given)
    with disk_errors("finishing the base", beside):
        for archive in (beside / "var/cache/apt/archives").glob("*.deb"):
            archive.unlink()  # ``kept`` has it, too
        rename(beside, wanted.root)


def _make_zig(
    wanted: WantedBase, zig: Zig, environ: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    """Let pip fetch zig, check its digest and unpack it; then write a compiler for each target."""
    folder = wanted.root.parent
    beside = wanted.root.with_name(f".{wanted.root.name}.new")
    scratch, asked = beside / "tmp", beside / "requirements.txt"
    log = folder / f"{wanted.root.name}.log"
    tell(f"{wanted.name}: fetching {zig.requirement} into {wanted.root}, once; its log is {log}")
    with disk_errors("making a folder", folder):
        if beside.exists():
            shutil.rmtree(beside)  # a killed run's
        log.unlink(missing_ok=True)
        scratch.mkdir(parents=True)
        asked.write_text(f"{zig.requirement} --hash=sha256:{zig.sha256}\n", "utf-8")
    run_pip(
        [
            *("install", "--only-binary=:all:", "--no-compile", f"--target={beside}"),
            *("--requirement", str(asked)),
        ],
        doing=f"fetching {zig.requirement} with pip",
        log=log,
        folder=folder,
        scratch=scratch,
        environ=environ,
    )
    with disk_errors("writing zig's compilers", beside):
        shutil.rmtree(scratch)
        (beside / SHARED).write_text("set(BUILD_SHARED_LIBS ON)\n", "utf-8")
        for path, text in _compilers(zig).items():
            compiler = beside / path
            compiler.parent.mkdir(exist_ok=True)
            compiler.write_text(text, "utf-8")
            compiler.chmod(0o755)
        rename(beside, wanted.root)


def _compilers(zig: Zig) -> dict[str, str]:
    """Return the script of each compiler by its path below zig's folder."""
    return {
        f"{name}/{language}": _COMPILER.format(language=language, target=base.target)
        for name, base in zig.bases.items()
        for language in ("cc", "c++")
    }


def opened_base(wanted: WantedBase, platform: str) -> ToolPlace:
    """Return a base that is there, when commands can run in it.

    Raises ``MissingTools`` without bubblewrap, ``UsageError`` for a folder that is no root of this
    architecture, and ``PublishError`` where this machine forbids the sandbox.
    """
    if isinstance(zig := wanted.system, Zig):
        return ZigPlace(given=zig.environment, folder=wanted.root, zig=zig, base=wanted.name)
    base = Base(wanted.root, wanted.system.environment if wanted.system else {})
    shell = base.outside(_SHELL)
    if not shell.is_file():
        raise UsageError(
            f"{base.root} is no root file system: it has no {_SHELL}",
            hint="name the folder into which a whole system was unpacked",
        )
    with disk_errors("reading the base", base.root), open_foreign(shell) as file:
        header = file.read(_ELF_HEADER)
    order: Literal["little", "big"] = "big" if header[5:6] == b"\2" else "little"
    machine = int.from_bytes(header[18:], order)
    if _ARCHITECTURES.get(machine) != platform.partition("-")[2]:
        name = _ARCHITECTURES.get(machine, "another architecture")
        raise UsageError(
            f"{base.root} is a system for {name}, and this machine is {platform}",
            hint="build it on such a machine; `add` takes the builds of several machines",
        )
    places = ("proc", "dev", "tmp")
    if absent := [name for name in places if not base.outside(Path("/", name)).is_dir()]:
        raise UsageError(
            f"{base.root} has no folder {absent[0]}",
            facts=(f"bubblewrap needs the folders {', '.join(places)} in it",),
            hint=f"run: mkdir -p {' '.join(shlex.quote(str(base.root / each)) for each in absent)}",
        )
    _require_sandbox(base)
    return base


def _require_sandbox(base: Base) -> None:
    """Try bubblewrap with a root. Raises ``MissingTools``, or ``PublishError`` if it fails."""
    _require("bwrap", "bubblewrap", "runs the compilers in the base")
    tried = children.run(base.argv([str(_SHELL), "-c", ":"]), capture_output=True, text=True)
    if tried.returncode:
        said = [line for line in tried.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise PublishError(
            "bubblewrap cannot run anything in a base here",
            facts=(f"tried with: {base.root}", printable(said[-1])),
            hint="containers often forbid namespaces, and in a chroot there are none: allow them, "
            "or build on the host",
        )


def _require(program: str, package: str, purpose: str) -> None:
    path = f"{os.environ.get('PATH', '')}:{_ADMINISTRATORS}"
    if children.which(program, {"PATH": path}) is None:
        raise MissingTools(
            f"{program} is missing, which {purpose}", hint=f"install the package {package}"
        )
