"""Where a build's tools are and where they run: this machine, or the root of another system."""

from __future__ import annotations

import os
import platform as host
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.processes import children, inherited
from tsuku_publish.building.matrix import Words, Zig, ZigTarget
from tsuku_publish.building.running import end_group
from tsuku_publish.isolated import ISOLATED

_TIME_LIMIT = 30.0
"""Seconds for one tool to tell its version; nvcc and icpx on a network disk are slow."""

_RUNNING = frozenset({"PATH", "HOME", "USER", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE"})
"""What programs need to run, besides ccache's variables; no byte of a build is decided by it."""

_COMPILERS = frozenset({"CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "HIPCXX"})
_DECIDING = _COMPILERS | {
    *("CPATH", "CMAKE_PREFIX_PATH", "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH"),
    *("CMAKE_PROGRAM_PATH", "CMAKE_TOOLCHAIN_FILE", "CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT"),
    *("VULKAN_SDK", "ROCM_PATH", "HIP_PATH", "HIP_CLANG_PATH", "HIP_DEVICE_LIB_PATH"),
    *("ONEAPI_ROOT", "CMPLR_ROOT", "MKLROOT", "MKL_DIR", "TBBROOT", "TBB_DIR", "DNNLROOT"),
    *("INTEL_OPENVINO_DIR", "OpenVINO_DIR", "DEVELOPER_DIR", "SDKROOT"),
}
"""What CMake and the compilers get of our environment that may decide bytes: a receipt says it."""

_OWN_PROCESSES = ("--pid", "--fork", "--kill-child")
"""Of unshare; without --user only root may ask for it."""

TEMPORARY = "/tmp"  # noqa: S108 - of the base, where no other user is
_INSIDE = Path(TEMPORARY, "build")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_LINKS = 40
SHARED = "ggml-shared.cmake"
"""The file of zig's folder that CMake includes when it begins ggml's own project."""

_PACKAGE = re.compile(
    r"^Package: (\S+)\nStatus: \S+ \S+ installed\n(?:\S.*\n| .*\n)*?Version: (\S+)$", re.MULTILINE
)


def _absolute(name: str, value: str) -> str:
    """Return a variable whose relative paths lead to the same place from every folder.

    CMake and the compilers run in the build's folder.
    """
    if name == "PATH":
        return inherited.environment({name: value}).get(name, os.defpath)
    program, space, options = value.partition(" ")
    if Path(value).is_dir() and name not in _COMPILERS:
        return os.path.abspath(value)
    if "/" in program and Path(program).is_file():
        return os.path.abspath(program) + space + options
    return value


@dataclass(frozen=True, slots=True)
class UsedBase:
    """The system that a build is compiled in; ``glibc`` is None for zig and for another libc."""

    root: Path
    system: str
    glibc: str | None


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """A place with tools: this machine, where they run as they are.

    The usual folders are below ``root``. ``given`` are variables of the place: compilers, which
    count before the user's, and switches of the source, which the user's count before.
    """

    root: Path = Path("/")
    given: Mapping[str, str] = field(default_factory=dict)

    def path(self, usual: str) -> Path:
        """Return the path of a folder that many systems have, for a program that runs here."""
        return self.root / usual.lstrip("/")

    def outside(self, path: Path) -> Path:
        """Return where a path of this place is on this machine, without links."""
        return path.resolve()

    def within(self, path: Path) -> Path:
        """Return the path of this place that a path of ``outside`` has."""
        return path

    def which(self, command: str, path: str) -> Path | None:
        """Return the program of this name on a search path."""
        found = shutil.which(command, path=path)
        return Path(found) if found else None

    def inside(self, folder: Path) -> Path:
        """Return the path that a folder of this machine has for a command that runs with it."""
        return folder.absolute()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that tools get."""
        # With CCACHE_BASEDIR, ccache would write other paths into the files than the compiler.
        kept = {
            name: value
            for name, value in environ.items()
            if (name in _RUNNING or name in _DECIDING or name.startswith("CCACHE_"))
            and (name != "CCACHE_BASEDIR" and value.strip())
        }
        return {name: _absolute(name, value) for name, value in kept.items()}

    def deciding(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return those of the tools' variables that may decide bytes."""
        kept = self.environment(environ)
        return {name: kept[name] for name in sorted(_DECIDING & kept.keys())}

    def argv(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """Return the words that run a command here, with a folder that it may write to."""
        del folder  # it can write anywhere
        return [*command]

    def answer(self, command: Sequence[str], environ: Mapping[str, str]) -> str:
        """Return what a command prints; "" if it fails or takes too long."""
        try:
            child = children.start(
                self.argv(command),
                env={**environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            return ""
        with child:
            try:
                said, _ = child.communicate(timeout=_TIME_LIMIT)
            except subprocess.TimeoutExpired:
                return ""
            finally:
                # A script's own children, too: a compiler that hangs is often started by one.
                if child.poll() is None:
                    end_group(child)
        return said.decode("utf-8", "replace") if child.returncode == 0 else ""

    def own_processes(self, environ: Mapping[str, str]) -> Words:
        """Return the words that give a command process ids from 1 on; none where that fails."""
        for user in ((), ("--user",)):
            words = ("unshare", *user, *_OWN_PROCESSES)
            if self.answer([*words, "sh", "-c", "echo $$"], environ).strip() == "1":
                return words
        return ()

    def named(self, path: Path) -> str:
        """Return how a receipt names a tool's path."""
        return str(path)

    def told(self) -> list[str]:
        """Return what CMake is told of this place alone."""
        return []

    def text(self, path: Path) -> str:
        """Return a file's text; "" if it cannot be read."""
        real = self.outside(path)
        try:
            return read_foreign(real).decode("utf-8", "replace")
        except OSError:
            return ""

    def release(self) -> dict[str, str]:
        """Return what the system says of itself in os-release, such as its ID and VERSION_ID."""
        lines = self.text(self.path("/etc/os-release")).splitlines()
        pairs = (line.partition("=")[::2] for line in lines if "=" in line)
        return {name: value.strip("\"'") for name, value in pairs}

    def described(self) -> dict[str, Any]:
        """Return what a receipt says of the system, besides the tools."""
        return {"system": self.release().get("PRETTY_NAME") or f"{host.system()} {host.release()}"}

    def base_used(self) -> UsedBase | None:
        """Return the base that a build is compiled in; None for this machine itself."""
        return None


@dataclass(frozen=True, slots=True)
class Base(ToolPlace):
    """A folder with the root file system of another system; bubblewrap runs the tools in it.

    They see it read-only, without a network and without anything else of this machine but the
    folder of the build, which always has the same path there. They can write to two folders in it,
    and to nothing that this process opens by its path: its log and the source are theirs to read.
    """

    def path(self, usual: str) -> Path:
        """Return the same path: it is one of the base."""
        return Path(usual)

    def outside(self, path: Path) -> Path:
        """Return where a path of the base is on this machine; links do not lead out of the base."""
        waiting = [*reversed(path.parts)]
        found: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "/":
                found.clear()
            elif part == "..":
                found = found[:-1]
            else:
                real = self.root.joinpath(*found, part)
                if real.is_symlink() and links < _MOST_LINKS:
                    links += 1
                    waiting += reversed(real.readlink().parts)
                else:
                    found.append(part)
        return self.root.joinpath(*found)

    def within(self, path: Path) -> Path:
        """Return the path that a file of this machine has in the base."""
        return Path("/", path.relative_to(self.root))

    def which(self, command: str, path: str) -> Path | None:
        """Return the program of this name on a search path of the base, as a path of the base."""
        for folder in path.split(":") if "/" not in command else ("/",):
            place = Path(folder or "/", command)
            real = self.outside(place)
            if real.is_file() and os.access(real, os.X_OK):
                return place
        return None

    def inside(self, folder: Path) -> Path:
        """Return the same path for every folder: no byte depends on where it is."""
        del folder
        return _INSIDE

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the base's variables, and ccache's settings of ours.

        A base that gives none has its compilers named by ours. Else ours are those of a machine,
        and the base has no such paths.
        """
        asked = {**environ, **self.given}
        kept = {
            name: value
            for name, value in ToolPlace.environment(self, asked).items()
            if name.startswith("CCACHE_")
            or name in self.given
            or (name in _COMPILERS and not self.given)
        }
        return {**kept, "PATH": _PATH, "HOME": TEMPORARY, "CCACHE_DIR": f"{_INSIDE}/ccache"}

    def argv(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """Return the words that run a command in the base, also if we are killed: then it ends."""
        words = [
            *(children.which("bwrap") or "bwrap", *ISOLATED),
            *("--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"),
            *("--tmpfs", TEMPORARY),
        ]
        if folder:
            words += ["--ro-bind", str(folder.absolute()), str(_INSIDE), "--chdir", str(_INSIDE)]
            for name in ("build", "ccache"):
                own = folder.absolute() / name
                own.mkdir(exist_ok=True)
                words += ["--bind", str(own), str(_INSIDE / name)]
        return [*words, *command]

    def described(self) -> dict[str, Any]:
        """Return what a receipt says of the base: not its path, which differs between machines."""
        told = self.release()
        return {
            "system": told.get("PRETTY_NAME", "Linux"),
            "base": "-".join(filter(None, (told.get("ID", "linux"), told.get("VERSION_ID")))),
            "glibc": self.glibc(),
            "packages": dict(self.packages()),
        }

    def base_used(self) -> UsedBase | None:
        """Return this base."""
        return UsedBase(self.root, self.release().get("PRETTY_NAME", "Linux"), self.glibc())

    def glibc(self) -> str | None:
        """Return the version of the base's glibc; None if it has another libc."""
        said = self.answer(["getconf", "GNU_LIBC_VERSION"], self.environment({}))
        return said.split()[-1] if said else None

    def packages(self) -> Iterator[tuple[str, str]]:
        """Yield each installed package with its version, where dpkg or apk manages them.

        Those that a base took from a newer suite are named as ``glslc/trixie``.
        """
        for found in _PACKAGE.finditer(self.text(Path("/var/lib/dpkg/status"))):
            yield found[1], found[2]
        for suite in sorted(self.outside(Path("/opt")).glob("*/var/lib/dpkg")):
            name = suite.parts[-4]
            for found in _PACKAGE.finditer(self.text(Path("/opt", name, "var/lib/dpkg/status"))):
                yield f"{found[1]}/{name}", found[2]
        for block in self.text(Path("/lib/apk/db/installed")).split("\n\n"):
            lines = dict(line.partition(":")[::2] for line in block.splitlines())
            if "P" in lines:
                yield lines["P"], lines.get("V", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZigPlace(ToolPlace):
    """This machine, with zig in a ``folder`` as its compilers for another C library, ``base``."""

    folder: Path
    zig: Zig
    base: str

    @property
    def target(self) -> ZigTarget:
        """What zig compiles for."""
        return self.zig.bases[self.base]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return this machine's variables with zig's compilers.

        They have a cache of their own: ccache cannot tell them apart.
        """
        kept = ToolPlace.environment(self, environ)
        kept = {name: kept[name] for name in kept if name not in {*_COMPILERS, "CPATH"}}
        compilers = self.folder / self.base
        cache = str(self.folder.with_name("zig-cache"))
        return {
            **kept,
            "CC": str(compilers / "cc"),
            "CXX": str(compilers / "c++"),
            "ZIG_GLOBAL_CACHE_DIR": cache,
            "ZIG_LOCAL_CACHE_DIR": cache,
            "CCACHE_DISABLE": "1",
        }

    def named(self, path: Path) -> str:
        """Return a path of zig's folder as the same on every machine."""
        if path.is_relative_to(self.folder):
            return str(Path(f"zig-{self.zig.version}", path.relative_to(self.folder)))
        return str(path)

    def deciding(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables, but zig's compilers, which ``described`` names."""
        kept = ToolPlace.deciding(self, environ)
        return {name: value for name, value in kept.items() if name not in _COMPILERS}

    def told(self) -> list[str]:
        """Return that ggml has shared libraries, whatever the others are."""
        return [f"-DCMAKE_PROJECT_ggml_INCLUDE={self.folder / SHARED}"]

    def described(self) -> dict[str, Any]:
        """Return zig's version and target: nothing else of this machine decides what is linked."""
        return {
            "system": self._system,
            "zig": self.zig.version,
            "target": self.target.target,
        }

    def base_used(self) -> UsedBase | None:
        """Return the folder with zig."""
        return UsedBase(self.folder, self._system, None)

    @property
    def _system(self) -> str:
        return f"zig {self.zig.version} for {self.target.target}"
