"""The shared libraries that a prebuilt program would find here: of C, of C++, and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tsuku_llm.machine.hardware import Libc
from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.probe.facts import answers

LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""The loaders that builds name, as the child's ``search`` has them, which shares no code."""

# What the loaders say before and after the name of a library that they miss.
_GLIBC_MISSES = (": error while loading shared libraries: ", ": cannot open shared object file")
_MUSL_MISSES = ("Error loading shared library ", ": No such file")
_BANNER = re.compile(r"release version (\d{1,3}\.\d{1,3})")
_MUSL = re.compile(r"Version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_PYTHON = re.compile(r"glibc (\d{1,3}\.\d{1,3})")


def parse(answer: DriverAnswer, python: object = None) -> Libc:
    """Tell which C library a prebuilt program would find, and its version.

    It is glibc if both its dynamic linker and a libc.so.6 with its versions are found, and musl if
    only musl's linker is. Otherwise it is the C library of this interpreter, or ``unknown``.
    """
    loaders = [str(line.get("path")) for line in answers.calls(answer, "loader")]
    if any("ld-linux" in path for path in loaders):
        # The banner tells the version, else a symbol's, which is at most as new as the library.
        match = _BANNER.search(answers.words(answers.value(answer, "libc.so.6", "banner")) or "")
        version = match[1] if match else newest_symbol(answer, "libc.so.6", "GLIBC_")
        # Alpine's gcompat has glibc's names, and no glibc behind them.
        if version:
            return Libc("glibc", version)
    banners = [str(line.get("banner")) for line in answers.calls(answer, "loader")]
    if any("ld-musl" in path for path in loaders):
        found = [match[1] for text in banners if (match := _MUSL.search(text))]
        return Libc("musl", found[0] if found else None)
    match = _PYTHON.match(python if isinstance(python, str) else "")
    return Libc("glibc", match[1]) if match else Libc("unknown", None)


def refusal(
    answer: DriverAnswer,
    system: Mapping[str, object],
    systems: tuple[str, ...],
    *,
    nix_ld: bool,
) -> str | None:
    """Say why no program that was made for other systems starts here; None if nothing shows it.

    NixOS has a loader that only prints an error (nixpkgs#269551), unless nix-ld takes its place.
    ``nix_ld`` tells of that where the answer does not say what the loader really is.
    """
    wanted = LOADERS.get(str(system.get("machine")))
    if not wanted or not answers.calls(answer, "libc.so.6"):
        return None
    loaders = answers.calls(answer, "loader")
    if not loaders and system.get("bits") == 32:
        return "this system is 32-bit: it has no loader for 64-bit programs"
    if not loaders:
        return f"this system has no {wanted}, which starts programs made for other systems"
    known = [text for line in loaders if (text := answers.words(line.get("real")))]
    if any("stub-ld" in text for text in known) or (
        systems[:1] == ("nixos",) and not known and not nix_ld
    ):
        return "NixOS starts no program that was made for other systems, unless nix-ld is on"
    # musl's loader has no libc.so.6.
    musl = any("ld-musl" in str(line.get("path")) for line in loaders)
    if not musl and answers.words(answers.value(answer, "libc.so.6", "error")):
        return "the loader of this system finds no libc.so.6, without which no program starts"
    return None


def newest_symbol(answer: DriverAnswer, library: str, prefix: str) -> str | None:
    """Return the newest version of a library's symbols, such as 3.4.30 of GLIBCXX_3.4.30."""
    versions = answers.value(answer, library, "versions")
    numbers = [
        tuple(int(part) for part in number.split("."))
        for version in (versions if isinstance(versions, list) else ())
        if isinstance(version, str)
        and version.startswith(prefix)
        and (number := answers.dotted(version.removeprefix(prefix)))
        # Leaves out names that are not versions, such as GLIBC_PRIVATE.
        and number == version.removeprefix(prefix)
    ]
    return ".".join(map(str, max(numbers))) if numbers else None


def library_question(names: Iterable[str]) -> str:
    """Return the question about other libraries than those that are always asked for."""
    return f"libraries:{','.join(names)}"


def parse_libraries(answer: DriverAnswer) -> Mapping[str, str | None]:
    """Return by name of each library what this system lacks for it; None if it can be loaded."""
    found: dict[str, str | None] = {}
    for line in answers.calls(answer, "library"):
        name, error = answers.words(line.get("name")), answers.words(line.get("error"))
        if name is None:
            continue
        if answers.words(line.get("path")) is None:
            found[name] = name
        elif error is None:
            found[name] = None
        # A limit that was reached says nothing about the library.
        elif answers.limit_fix(error) is None:
            found[name] = _missing(error) or name
    return found


def _missing(error: str) -> str | None:
    """Return the library that a loader misses, by its message; None if it says something else."""
    for before, after in (_GLIBC_MISSES, _MUSL_MISSES):
        _, said, rest = error.partition(before)
        name, ended, _ = rest.partition(after)
        if said and ended and name.strip():
            return name.rpartition("/")[2]
    return None
