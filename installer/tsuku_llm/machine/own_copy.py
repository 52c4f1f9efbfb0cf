"""How this copy of the program was installed, and which command updates it. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tsuku_llm import __version__

NAME = "tsuku-llm"
FOLDER = "tsuku-llm-folder"
"""What the file INSTALLER has in the program without Python, if no package manager put it there."""
PUBLISHER = "tsuku-publish"
"""The distribution that signs repositories and compiles builds."""


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What the files around this copy say.

    ``installer`` is the content of the file INSTALLER of its metadata, None without metadata.
    ``origin`` is the address that it was installed from, "" if an index had it. ``environment``
    tells whether ``prefix`` is an environment and not a Python of the system. ``managed`` tells
    whether the system keeps pip away from its Python (PEP 668). ``clone`` is the folder whose
    install.sh made the environment, or to which an editable install points. ``bundle``
    tells whether a bundle made the environment. ``tools`` are the updaters on the PATH.
    ``index`` are the variables for an index that uv or pipx noted when they installed it.
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
    index: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Updater:
    """The way of an installation: ``way``, and ``text``, which also tells the place.

    ``tool`` installs the new version: pip or uv, "" if there is nothing to install. ``index`` are
    its variables for the index that the copy came from; a URL may hold a password, so they are no
    options. ``clone`` is the folder that git updates first, with ``commands``. ``reason`` says why
    the copy cannot update itself, and ``hint`` what to do instead; both are empty if it can.
    """

    way: str
    text: str
    tool: str = ""
    clone: Path | None = None
    editable: bool = False
    index: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    hint: str = ""

    # ``--version`` does without the module that has ``documented``.
    DOCUMENT = ("way", "commands", "clone", "reason")

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """What is run before the installation."""
        pull = ("git", "-C", str(self.clone), "pull", "--ff-only")
        return (pull,) if self.clone and not self.reason else ()

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
    "folder": "the program without Python, from an archive",
    "source": "not installed, run from its source",
}


def updater_of(facts: CopyFacts) -> Updater:
    """Return what updates this copy; the first rule that holds decides."""
    if facts.clone:
        return _clone(facts, facts.clone)
    if facts.uv_tool:
        return _tool("uv-tool", "uv tool", facts)
    if facts.pipx:
        return _tool("pipx", "pipx", facts)
    if facts.installer is None:
        return Updater(
            "source",
            f"not installed: it runs from {facts.package}",
            reason="nothing recorded how it came here",
            hint="update that folder in the way that you made it",
        )
    if _is_packaged(facts):
        return _packaged(facts)
    return _pip(facts)


def _is_packaged(facts: CopyFacts) -> bool:
    """Return whether a package or an archive brought this copy: its Python takes nothing of pip."""
    return facts.installer not in (None, "pip", "uv")


def extra_command(facts: CopyFacts, extra: str) -> str:
    """Return the command that adds the packages of an extra to this copy."""
    came = _own_name(facts)
    name = quote(f"{NAME}[{extra}] @ {came}" if came != NAME else f"{facts.clone or NAME}[{extra}]")
    if facts.uv_tool:
        return f"uv tool install --force {name}"
    if facts.pipx or _is_packaged(facts):
        return f"pipx install --force {name}"
    return f"{quote(facts.python)} -m pip install {name}"


def publisher_command(facts: CopyFacts, version: str = __version__) -> str:
    """Return the command that installs tsuku-publish beside this copy, in the same version."""
    clone = facts.clone
    own = _own_name(facts)
    name = f"{PUBLISHER}=={version}"
    if clone:
        name = quote(str(clone / "installer/publish"))
    elif own != NAME:
        name = f"{PUBLISHER.replace('-', '_')}-{version}-py3-none-any.whl"
    if facts.uv_tool:
        return f"uv tool install --force {quote(str(clone or own))} --with {name}"
    if facts.pipx:
        return f"pipx inject {quote(facts.prefix.name)} {name}"
    if _is_packaged(facts):
        return f"pipx install {name}"
    return f"{quote(facts.python)} -m pip install {name}"


def _own_name(facts: CopyFacts) -> str:
    """Return what an installer gets to install this copy: its file, where it came from one.

    An index need not have the package then.
    """
    return facts.origin if facts.origin.startswith("file:") and not facts.clone else NAME


def _packaged(facts: CopyFacts) -> Updater:
    if facts.installer == FOLDER:
        folder = facts.prefix.parent
        return Updater(
            "folder",
            f"the program without Python, in {folder}",
            reason="an archive does not tell where a newer one is",
            hint=f"unpack a newer archive, and put its folder in place of {folder}",
        )
    manager = facts.installer or ""
    return Updater(
        "package-manager",
        f"installed by {manager or 'a package manager'}",
        reason="its files are a package manager's",
        hint=f"update the package {NAME} with {manager or 'that package manager'}",
    )


def _clone(facts: CopyFacts, clone: Path) -> Updater:
    text = f"installed by install.sh of the clone {clone}"
    if facts.editable:
        text = f"an editable install of {clone}"
    way = "editable" if facts.editable else "clone"
    if not facts.is_repository:
        hint = f"replace {clone} by a newer source archive, and install it again"
        return Updater(way, text, reason="the folder is no clone of a git repository", hint=hint)
    if "git" not in facts.tools:
        hint = f"install git, or bring a newer state of {clone}, and run its install.sh"
        return Updater(way, text, reason="git is not on the PATH", hint=hint)
    # A Python of the system keeps its packages; an editable install uses the clone's files as they
    # are.
    tool = "" if facts.editable and not facts.environment else "pip"
    return Updater(way, text, tool, clone, facts.editable)


def _tool(way: str, by: str, facts: CopyFacts) -> Updater:
    text = f"installed with {by}, in {facts.prefix}"
    if facts.origin.startswith("file:"):
        again = f"install a newer wheel: {by} install --force FILE.whl"
        return Updater(way, text, reason=f"it came from {facts.origin}", hint=again)
    # Every copy has pip.
    if way == "uv-tool" and "uv" not in facts.tools:
        hint = f"install it, or run this where it is: uv tool upgrade {NAME}"
        return Updater(way, text, reason="uv is not on the PATH", hint=hint)
    return Updater(way, text, "uv" if way == "uv-tool" else "pip", index=facts.index)


def _pip(facts: CopyFacts) -> Updater:
    if facts.bundle:
        return Updater(
            "bundle",
            f"installed from a bundle, in {facts.prefix}",
            reason="a bundle does not tell where a newer one is",
            hint="bring a newer bundle, and run: sh FILE",
        )
    by = "uv pip" if facts.installer == "uv" else "pip"
    own = quote(_own_name(facts))
    if not facts.environment:
        # Programs of the system, or of this user, may need the versions that are there.
        user = facts.user_site and not facts.managed
        return Updater(
            "user" if user else "system",
            f"installed with {by} into this user's folder for packages"
            if user
            else f"installed with {by} into the system's Python, {facts.prefix}",
            reason="it shares its packages with other programs",
            hint=f"move to an environment: uv tool install {own}, or: pipx install {own}",
        )
    text = f"installed with {by} in the environment {facts.prefix}"
    if facts.origin:
        hint = f"install a newer one: {facts.python} -m pip install --upgrade FILE.whl"
        return Updater("environment", text, reason=f"it came from {facts.origin}", hint=hint)
    uses_uv = facts.installer == "uv" and "uv" in facts.tools
    return Updater("environment", text, "uv" if uses_uv else "pip")
