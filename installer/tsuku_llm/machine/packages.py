"""The commands that install a missing library on this system, or what to do without one. Pure.

Names of packages are only told for the package manager that the system has. A system whose manager
is not known, or that keeps its programs read-only, gets the name of the library instead.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache

import tomli

from tsuku_llm.ground.own_name import SUDO, TSUKU
from tsuku_llm.machine.backends import TABLE

_COMMANDS = {
    "debian": "apt install",
    "fedora": "dnf install",
    "ostree": "rpm-ostree install",
    "arch": "pacman -S",
    "suse": "zypper install",
    "alpine": "apk add",
    "homebrew": "brew install",
    "winget": "winget install",
}
_WITHOUT_ROOT = ("homebrew", "winget")
"""The managers that install as the user."""

_FAMILIES = {
    **dict.fromkeys(("debian", "ubuntu"), "debian"),
    **dict.fromkeys(("fedora", "rhel", "centos", "red"), "fedora"),
    "arch": "arch",
    **dict.fromkeys(("suse", "opensuse", "sles"), "suse"),
    "alpine": "alpine",
    # Their programs are read-only or come from elsewhere, whatever they are like.
    **dict.fromkeys(("nixos", "guix", "steamos", "flatcar", "bottlerocket", "ubuntu-core"), ""),
    **dict.fromkeys(("opensuse-microos", "opensuse-aeon", "opensuse-kalpa", "sl-micro"), ""),
}


_LINUX = ("debian", "fedora", "arch", "suse", "alpine")

REINSTALL_COMMAND = f"{TSUKU} install --force"
"""In a fix: stands for the command that installs exactly the build that failed."""

REINSTALL = f"install it again: {REINSTALL_COMMAND}"
FOR_THIS_MACHINE = f"install the build for this machine: {REINSTALL_COMMAND}"

_ADVICE = {
    **dict.fromkeys(("libggml", "libllama", "libmtmd"), REINSTALL),
    **{library: fix for row in TABLE for library, fix in row.library_fixes.items()},
}
"""Advice for libraries that do not come from a distribution's package."""


def package_of(library: str, family: str) -> str:
    """Say how to get a missing library on a system of this ``family``, "" for an unknown one."""
    name = library.rsplit("/", 1)[-1]
    command = command_for((name,), family)
    return f"run: {command}" if command else _advice((name,))


def advice_for(libraries: tuple[str, ...], family: str, *, container: bool = False) -> str:
    """Return the command that installs what has these libraries, and what else to install."""
    packed = tuple(each for each in libraries if None not in _packages((each,), family))
    command = command_for(packed, family, container=container)
    rest = tuple(each for each in libraries if not command or each not in packed)
    return "; ".join(filter(None, (command, _advice(rest))))


def brought_by(libraries: tuple[str, ...], family: str) -> str:
    """Name the packages of a family that have these libraries, and what else to install."""
    names = _packages(libraries, family)
    packages = [*dict.fromkeys(filter(None, names))]
    rest = tuple(each for each, name in zip(libraries, names, strict=True) if not name)
    word = "packages" if len(packages) > 1 else "package"
    named = f"{word} {', '.join(packages)}" if packages else ""
    return "; ".join(filter(None, (named, _advice(rest))))


def _advice(libraries: tuple[str, ...]) -> str:
    """Say how to get libraries of which this family has no known package."""
    keys = [
        max((key for key in _ADVICE if name.startswith(key)), key=len, default="")
        for name in libraries
    ]
    found = [_ADVICE[key] for key in dict.fromkeys(keys) if key]
    if rest := [name for name, key in zip(libraries, keys, strict=True) if not key]:
        found.append(f"install the package of your system that has {', '.join(rest)}")
    return "; ".join(dict.fromkeys(found))


def command_for(libraries: tuple[str, ...], family: str, *, container: bool = False) -> str | None:
    """Return the command that installs what has these libraries; None if that is not known.

    In a container the user mostly is root, and there is no sudo.
    """
    return install_command(_packages(libraries, family), family, container=container)


def _packages(libraries: tuple[str, ...], family: str) -> list[str | None]:
    # A system from which packages are installed as an image has the names of its family.
    family = "fedora" if family == "ostree" else family
    found: list[str | None] = []
    for library in libraries:
        keys = (key for key in (*_table(), *_ADVICE) if library.startswith(key))
        names = _table().get(max(keys, key=len, default=""), {})
        found.append(names.get(family, names.get("linux") if family in _LINUX else None))
    return found


def install_command(
    names: Sequence[str | None], family: str, *, container: bool = False
) -> str | None:
    """Return the command that installs packages of this family; None if one is not known."""
    found = list(dict.fromkeys(name for name in names if name))
    if family not in _COMMANDS or not found or None in names:
        return None
    sudo = "" if container or family in _WITHOUT_ROOT else SUDO
    restart = ", then restart the machine" if family == "ostree" else ""
    return f"{sudo}{_COMMANDS[family]} {' '.join(found)}{restart}"


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    """Return the packages of each library, by family: the rows of ``packages.toml``."""
    data = pkgutil.get_data("tsuku_llm.machine", "packages.toml") or b""
    rows = tomli.loads(data.decode()).items()
    found = {library: names for libraries, names in rows for library in libraries.split()}
    return found | {library: names for row in TABLE for library, names in row.packages.items()}


def family_of(system: str, release_file: str = "") -> str:
    """Return the package manager's family of a system, "" if it is not known.

    ``system`` is ``linux``, ``darwin`` or ``windows``; ``release_file`` the text of Linux's
    ``os-release``, of which the ``ID`` counts first, then the ``ID_LIKE``.
    """
    if system != "linux":
        return {"darwin": "homebrew", "windows": "winget"}.get(system, "")
    ids, has_ostree = _read(release_file)
    family = next((_FAMILIES[name] for name in ids if name in _FAMILIES), "")
    return "ostree" if family == "fedora" and has_ostree else family


def systems_of(release_file: str) -> tuple[str, ...]:
    """Return the words for a Linux system, its own id first, then what it is like.

    A system whose programs are read-only is like no other: what helps there does not help here.
    """
    found, has_ostree = _read(release_file)
    ids = tuple(dict.fromkeys(found))
    if ids and _FAMILIES.get(ids[0]) == "":
        return ids[:1]
    return ("ostree", *ids) if has_ostree else ids


def _read(release_file: str) -> tuple[list[str], bool]:
    """Return the ids of a system, its own first, and whether packages are installed as images."""
    words: dict[str, list[str]] = {}
    for line in release_file.splitlines():
        key, _, value = line.partition("=")
        words[key] = value.strip().strip("\"'").lower().split()
    # Without an ID, the first word of the name says what it is.
    first = [*words.get("NAME", ()), *words.get("PRETTY_NAME", ())][:1]
    ids = (*words.get("ID", first), *words.get("ID_LIKE", ()))
    # The whole id counts first, then its first part, as in "opensuse-leap".
    names = [name for word in ids for name in (word, word.partition("-")[0])]
    return names, "OSTREE_VERSION" in words
