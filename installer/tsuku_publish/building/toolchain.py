"""The tools that a machine or a base has for a build: where they are, and their versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tsuku_llm.ground.records import documented
from tsuku_llm.machine.packages import family_of, install_command
from tsuku_publish.building.matrix import BuildMatrix, BuildTool, Words, numbers
from tsuku_publish.building.place import Base, ToolPlace, UsedBase
from tsuku_publish.errors import MissingTools


@documented("name", "version", "path")
@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool of this machine; ``version`` is "" if it does not tell one, ``text`` is what it says.

    ``path`` is the program, or the header that shows that a library is there.
    """

    name: str
    title: str
    path: Path
    version: str
    text: str


@documented("name", "reason", "advice", "optional")
@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that this machine lacks; ``reason`` is about one that is too old, else "".

    ``optional`` says what happens without it, "" for one that a build needs.

    It is ``unusable`` where another package does not help: it is too old, gives no answer, or a
    variable names another place.
    """

    name: str
    title: str
    reason: str
    advice: str
    optional: str
    unusable: bool = False


@documented("base", "tools", "missing", "install")
@dataclass(frozen=True, slots=True)
class Toolchain:
    """What was found for a build, and what was not, in a ``place`` of this ``platform``.

    ``install`` is the command for all that is not there; None if not every package is known.
    """

    tools: tuple[FoundTool, ...]
    missing: tuple[MissingTool, ...]
    install: str | None
    platform: str = "linux-amd64"
    place: ToolPlace = field(default_factory=ToolPlace)

    @property
    def base(self) -> UsedBase | None:
        """The system that it compiles in; None for this machine's own tools."""
        return self.place.base_used()

    def get(self, name: str) -> FoundTool | None:
        """Return a tool that was found."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def lacking(self) -> tuple[MissingTool, ...]:
        """The missing tools without which nothing can be built."""
        return tuple(tool for tool in self.missing if not tool.optional)

    def require_complete(self) -> None:
        """Raise ``MissingTools``, which names each with its package."""
        if not self.lacking:
            return
        told = [
            f"{tool.title}: {tool.reason or 'not found'}; {tool.advice}" for tool in self.lacking
        ]
        where = f" in the base {self.place.root}" if isinstance(self.place, Base) else ""
        hint = f"install what is named{where}, then try again"
        raise MissingTools(
            "tools for this build are missing: " + ", ".join(tool.title for tool in self.lacking),
            facts=tuple(told),
            hint=f"run{where}: {self.install}" if self.install else hint,
        )


def detect(
    matrix: BuildMatrix,
    backends: Words,
    environ: Mapping[str, str],
    *,
    platform: str = "linux-amd64",
    place: ToolPlace,
) -> Toolchain:
    """Look for the tools that these backends need, on the PATH of a place and in usual folders."""
    environ = place.environment(environ)
    family = family_of(platform.partition("-")[0], place.text(place.path("/etc/os-release")))
    found: list[FoundTool] = []
    missing: list[MissingTool] = []
    for name in matrix.tools_of(backends):
        tool = matrix.tools[name]
        words = _found(tool, environ, place)
        seen = _described(name, tool, words, environ, place) if words else None
        reason, advice = "", _advice(tool, family)
        unusable = seen is not None
        least = matrix.least(name, backends)
        if seen is None:
            named = [f"{each}={environ[each]}" for each in tool.variables if each in environ]
            reason = f"not found with {' '.join(named)}" if named else ""
            if _program_named(tool, environ, place):
                unusable, advice = True, "correct or unset the variable"
        elif not tool.files and not seen.text:
            reason = f"{seen.path} gives no answer to --version"
            advice = "mend it, or put another one first on the PATH"
        elif least and seen.version and numbers(seen.version) < numbers(least):
            reason = f"{seen.path} is {seen.version}, and {least} is needed"
            # The system's package is what was found, so it does not help.
            advice = tool.advice or "install a newer one"
        else:
            found.append(seen)
            continue
        missing.append(MissingTool(name, tool.title, reason, advice, tool.optional, unusable))
    names = {tool.name for tool in found}
    # Either builds; Ninja is the faster one.
    missing = [tool for tool in missing if tool.name != "make" or "ninja" not in names]
    lacking = [tool.name for tool in missing if not (tool.optional or tool.unusable)]
    packages = [matrix.tools[name].packages.get(family) for name in lacking]
    command = install_command(packages, family)
    return Toolchain(tuple(found), tuple(missing), command, platform, place)


def _found(tool: BuildTool, environ: Mapping[str, str], place: ToolPlace) -> Words:
    """Return the first path that has a tool: its variables, the PATH, then the usual folders.

    The options with which a variable names a program come after its path.
    """
    told = [environ[name] for name in tool.variables if name in environ]
    if tool.files:
        bases = [*map(Path, told), *map(place.path, tool.roots)]
        return tuple(map(str, islice(_matches(bases, tool.files, place), 1)))
    path = environ.get("PATH", "")
    if each := _program_named(tool, environ, place):
        # CMake would use it, too: another compiler must not stand in for it here.
        name, *options = each.split()
        if program := place.which(each, path):
            return (str(program),)
        program = place.which(name, path)
        return (str(program), *options) if program else ()
    for each in told:
        for command in tool.commands:
            if program := place.which(command, str(Path(each, "bin"))):
                return (str(program),)
    searched = [path, *(str(place.path(each)) for each in tool.folders)]
    for command in tool.commands:
        for folder in searched:
            if program := place.which(command, folder):
                return (str(program),)
    return ()


def _program_named(tool: BuildTool, environ: Mapping[str, str], place: ToolPlace) -> str:
    """Return the program that the first variable names, with its options; "" for a folder.

    CC and the like name a program, CUDA_PATH and the like a folder above bin.
    """
    told = next((environ[name] for name in tool.variables if name in environ), "")
    return "" if tool.files or place.outside(Path(told)).is_dir() else told


def _matches(bases: list[Path], patterns: Words, place: ToolPlace) -> Iterator[Path]:
    for base in bases:
        real = place.outside(base)
        for pattern in patterns:
            yield from (base / each.relative_to(real) for each in sorted(real.glob(pattern)))


def _described(
    name: str, tool: BuildTool, words: Words, environ: Mapping[str, str], place: ToolPlace
) -> FoundTool:
    path = Path(words[0])
    if tool.files:
        # Both names begin at the same folder.
        base = path.parents[len(Path(tool.files[0]).parts) - 1]
        text = place.text(base / tool.version_file) if tool.version_file else ""
    else:
        # With its options: ccache answers for itself, and for the compiler that follows it.
        text = place.answer([*words, "--version"], environ)
    shown = re.search(tool.version, text)
    version = ".".join(shown.groups()) if shown else ""
    # A header's text is its source: only a program's answer says which one it is.
    return FoundTool(name, tool.title, path, version, "" if tool.files else text.strip())


def _advice(tool: BuildTool, family: str) -> str:
    """Name the package that has a tool: this system's, or else that of the known ones."""
    if family in tool.packages:
        return f"package {tool.packages[family]}"
    names = [f"{tool.packages[each]} ({each.title()})" for each in tool.packages]
    return tool.advice or f"package {', '.join(names)}"
