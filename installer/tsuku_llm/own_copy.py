"""How this copy of the program was installed, and which command updates it. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

NAME = "tsuku-llm"


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What the files around this copy say.

    ``installer`` is the content of the file INSTALLER of its metadata, None without metadata.
    ``origin`` is the address that it was installed from, "" if an index had it. ``environment``
    tells whether ``prefix`` is an environment and not a Python of the system. ``managed`` tells
    whether the system keeps pip away from its Python (PEP 668). ``clone`` is the folder whose
    install.sh made the environment, or to which an editable install points. ``bundle``
    tells whether a bundle made the environment. ``tools`` are the updaters on the PATH.
    """

    prefix: Path
    python: str
    package: Path
    installer: str | None = None
    origin: str = ""
    editable: bool = False
    environment: bool = False
    managed: bool = False
    user_site: bool = False
    uv_tool: bool = False
    pipx: bool = False
    bundle: bool = False
    clone: Path | None = None
    is_repository: bool = False
    tools: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Updater:
    """The way of an installation: ``way``, and ``text``, which also tells the place.

    ``commands`` update it, in order, each in ``folder``. If there are none, ``reason`` and ``hint``
    say why, and what to do instead.
    """

    way: str
    text: str
    commands: tuple[tuple[str, ...], ...] = ()
    folder: Path | None = None
    reason: str = ""
    hint: str = ""

    @property
    def summary(self) -> str:
        """The way in words, without the place: it may be shown to others."""
        return _SUMMARIES[self.way]


_SUMMARIES = {
    "clone": "installed by install.sh",
    "editable": "an editable install of a clone",
    "uv-tool": "installed with uv tool",
    "pipx": "installed with pipx",
    "environment": "installed with pip in an environment",
    "bundle": "installed from a bundle",
    "user": "installed with pip for this user",
    "system": "installed into the system's Python",
    "package-manager": "installed by a package manager",
    "source": "not installed, run from its source",
}


def updater_of(facts: CopyFacts) -> Updater:
    """Return what updates this copy; the first rule that holds decides."""
    if facts.clone:
        return _clone(facts, facts.clone)
    if facts.uv_tool:
        again = "install a newer wheel: uv tool install --force FILE.whl"
        return _tool("uv-tool", "uv tool", ("uv", "tool", "upgrade", NAME), again, facts)
    if facts.pipx:
        # pipx names the environment after the package, and a suffix if there is one.
        again = "install a newer wheel: pipx install --force FILE.whl"
        return _tool("pipx", "pipx", ("pipx", "upgrade", facts.prefix.name), again, facts)
    if facts.installer is None:
        return Updater(
            "source",
            f"not installed: it runs from {facts.package}",
            reason="nothing recorded how it came here",
            hint="update that folder in the way that you made it",
        )
    if facts.installer not in ("pip", "uv"):
        return Updater(
            "package-manager",
            f"installed by {facts.installer or 'a package manager'}",
            reason="its files are a package manager's",
            hint=f"update the package {NAME} with {facts.installer or 'that package manager'}",
        )
    return _pip(facts)


def extra_command(facts: CopyFacts, extra: str) -> str:
    """Return the command that adds the packages of an extra to this copy."""
    name = quote(f"{facts.clone or NAME}[{extra}]")
    if facts.uv_tool:
        return f"uv tool install --force {name}"
    if facts.pipx:
        return f"pipx install --force {name}"
    return f"{quote(facts.python)} -m pip install {name}"


def _clone(facts: CopyFacts, clone: Path) -> Updater:
    again: tuple[tuple[str, ...], ...] = (("./install.sh",),)
    text = f"installed by install.sh of the clone {clone}"
    if facts.editable:
        # A Python of the system keeps its packages; the files of the clone are used as they are.
        pip = (facts.python, "-m", "pip", "install", "--editable", ".")
        again = (pip,) if facts.environment else ()
        text = f"an editable install of {clone}"
    way = "editable" if facts.editable else "clone"
    if not facts.is_repository:
        hint = f"replace {clone} by a newer source archive, and install it again"
        return Updater(way, text, reason="the folder is no clone of a git repository", hint=hint)
    pull = ("git", "pull", "--ff-only")
    return _if_found(Updater(way, text, (pull, *again), clone), "git", facts)


def _tool(way: str, by: str, command: tuple[str, ...], again: str, facts: CopyFacts) -> Updater:
    text = f"installed with {by}, in {facts.prefix}"
    if facts.origin.startswith("file:"):
        return Updater(way, text, reason=f"it came from {facts.origin}", hint=again)
    return _if_found(Updater(way, text, (command,)), command[0], facts)


def _pip(facts: CopyFacts) -> Updater:
    if facts.bundle:
        return Updater(
            "bundle",
            f"installed from a bundle, in {facts.prefix}",
            reason="a bundle does not tell where a newer one is",
            hint="bring a newer bundle, and run: sh FILE",
        )
    by = "uv pip" if facts.installer == "uv" else "pip"
    pip: tuple[str, ...] = (facts.python, "-m", "pip", "install", "--upgrade")
    if facts.environment:
        way, text = "environment", f"installed with {by} in the environment {facts.prefix}"
        if facts.installer == "uv" and "uv" in facts.tools:
            pip = ("uv", "pip", "install", "--python", facts.python, "--upgrade")
    elif facts.user_site and not facts.managed:
        way, text = "user", f"installed with {by} into this user's folder for packages"
        pip = (*pip, "--user")
    else:
        # Programs of the system may need the versions that it has.
        return Updater(
            "system",
            f"installed with {by} into the system's Python, {facts.prefix}",
            reason="a Python of the system is not changed by this program",
            hint=f"move to an environment: uv tool install {NAME}, or: pipx install {NAME}",
        )
    if facts.origin:
        hint = f"install a newer one: {' '.join(pip)} FILE.whl"
        return Updater(way, text, reason=f"it came from {facts.origin}", hint=hint)
    return Updater(way, text, ((*pip, NAME),))


def _if_found(updater: Updater, tool: str, facts: CopyFacts) -> Updater:
    if tool in facts.tools:
        return updater
    calls = " && ".join(" ".join(each) for each in updater.commands)
    where = f"in {updater.folder}: " if updater.folder else ""
    return Updater(
        updater.way,
        updater.text,
        reason=f"{tool} is not on the PATH",
        hint=f"install it, or run this where it is: {where}{calls}",
    )
