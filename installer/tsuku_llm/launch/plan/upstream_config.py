"""The files that upstream's servers read by themselves: ``config.ini``, and a router's preset.

Variables and arguments come before ``config.ini``; a router's arguments come before its preset, and
that before variables. The files and their order are those of ``common_params_apply_system_config``
in upstream's common/arg.cpp (llama.cpp#26118), and the format of both is that of common/preset.cpp.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.launch.plan.build_arguments import (
    KnownArgument,
    Understood,
    arguments_in,
    instead,
)
from tsuku_llm.launch.plan.secret_arguments import shown_variable
from tsuku_llm.launch.plan.wishes import spelled

_SYSTEM = Path("/etc")
_LARGEST = 1 << 20
_LARGEST_CODE = 1 << 28
"""Bytes of a library of upstream's; that of b10434 has 5 million."""
_SECTION = re.compile(r"\[[ \t]*([^\]]+)\][ \t]*(?:[;#].*)?")
_KEY = re.compile(r"([a-zA-Z_][a-zA-Z0-9_.-]*)[ \t]*=[ \t]*(.*?)[ \t]*(?:[;#].*)?")
_READ = ("*", "default")
"""The sections that count, in their order; what comes before any section is in the second."""
_PRESET_ONLY = ("version", "load-on-startup", "stop-timeout", "dedup-cache-models")
"""Keys that only a preset can have (``common_params_add_preset_options``, b11434)."""
_NUMBER = re.compile(r"\s*[+-]?(?:\.?\d|inf|nan)", re.IGNORECASE)
"""The beginning that ``stoi`` or ``stof`` wants: they ignore what follows."""
_WORDS = ("auto", "all")
"""Words that arguments with a number take as well, such as ``--gpu-layers`` (common/arg.cpp)."""
_FILES = ("LLAMA_ARG_MODEL", "LLAMA_ARG_MMPROJ")
_TRUE = ("on", "enabled", "true", "1")


class ConfigValue(NamedTuple):
    """One value of a file: the ``variable`` that says the same, its ``value``, and the ``source``.

    ``key`` is how the file calls it.
    """

    variable: str
    value: str
    key: str
    source: Path


def configured(env: Mapping[str, str], takes: Sequence[str]) -> dict[str, ConfigValue]:
    """Return what files decide, by its variable: a variable that is set comes before them.

    ``takes`` are the arguments of the build. The user's file overrides the system's.
    """
    if sys.platform == "win32":
        folders = [Path(env[name]) for name in ("PROGRAMDATA", "APPDATA") if env.get(name)]
    else:
        folders = [_SYSTEM]
        if env.get("XDG_CONFIG_HOME"):
            folders.append(Path(env["XDG_CONFIG_HOME"]))
        elif env.get("HOME"):
            folders.append(Path(env["HOME"]) / ".config")
    known, found = _keys(takes), dict[str, ConfigValue]()
    for path in (folder / "llama.cpp" / "config.ini" for folder in folders):
        text = ""
        with suppress(OSError):
            text = read_foreign(path, _LARGEST).decode("utf-8", "replace")
        for key, value in parse_config(text):
            argument, name = known.get(key, (None, ""))
            if argument and (variable := argument.variable):
                said = _as_variable(argument, name, value)
                found[variable] = ConfigValue(variable, said, key, path)
    # A flag that can be negated has a second variable, which comes first.
    return {
        name: each
        for name, each in found.items()
        if name not in env and name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") not in env
    }


def preset_in(
    path: Path, takes: Sequence[str], given: Sequence[str], folder: Path
) -> Iterator[Understood]:
    """Yield what a router's preset says, as the build with these arguments reads it.

    ``given`` are the router's arguments: what they say counts in place of a value. The server runs
    in ``folder``. A file that only the server can read, such as a pipe, says nothing here.
    """
    known = _keys(takes)
    if not known:
        return
    try:
        sections = _parsed(read_foreign(path, _LARGEST).decode("utf-8", "replace"))
    except FileNotFoundError:
        yield Understood("--models-preset", (str(path),), (), None, "there is no such file")
        return
    except OSError:
        return
    if sections is None:
        problem = "it cannot be read: a line is no [SECTION], no KEY = VALUE and no comment"
        yield Understood("--models-preset", (str(path),), (), None, problem)
        return
    said = set(map(spelled, given))
    for section, pairs in sections.items():
        for key, value in sorted(pairs.items()):
            argument, name = known.get(key, (None, ""))
            if argument and said.intersection(argument.names):
                continue
            variable = argument.variable if argument else None
            yield Understood(
                word=key,
                # The name of a secret's variable tells that it is one.
                values=(shown_variable(variable or key.upper(), value),),
                names=tuple(each for each in argument.names if each != name) if argument else (),
                variable=variable,
                problem=_problem(key, value, argument, known, folder),
                source=f"{path} [{section}]",
            )


def _problem(
    key: str,
    value: str,
    argument: KnownArgument | None,
    known: Mapping[str, tuple[KnownArgument, str]],
    folder: Path,
) -> str | None:
    """Say why a value of a preset ends the router, or the server of a model; None if it is right.

    A router reads the keys, and the server of a model its values, when that is loaded.
    """
    if argument is None:
        if key in _PRESET_ONLY:
            return None
        names = {name: each for each, _ in known.values() for name in each.names}
        return f"it has no {key}{instead(f'--{key}', names)}"
    refusal = argument.refusal(key)
    if refusal or argument.values > 1:
        return refusal or f"{key} has two values, which no preset can have"
    if argument.hint == "N" and not (_NUMBER.match(value) or value in _WORDS):
        return f"{key} wants a number"
    if argument.variable in _FILES and not (folder / value).exists():
        return f"{key}: there is no file {value}"
    return None


def parse_config(text: str) -> tuple[tuple[str, str], ...]:
    """Return keys and values in the order in which they count; nothing for a file with an error.

    The server ends at such a file, and says so.
    """
    sections = _parsed(text) or {}
    return tuple(pair for name in _READ for pair in sorted(sections.get(name, {}).items()))


def _parsed(text: str) -> dict[str, dict[str, str]] | None:
    """Return the keys and values of each section; None for a file with an error."""
    sections: dict[str, dict[str, str]] = {}
    section = _READ[-1]
    for line in re.split(r"\r\n|\n|\r", text):
        if not line.strip(" \t") or line.lstrip(" \t").startswith((";", "#")):
            continue
        if header := _SECTION.fullmatch(line):
            section = header[1].rstrip(" \t")
            sections[section] = {}
        elif found := _KEY.fullmatch(line):
            sections.setdefault(section, {})[found[1]] = found[2]
        else:
            return None
    return sections


def _keys(takes: Sequence[str]) -> dict[str, tuple[KnownArgument, str]]:
    """Return each key that a build knows, with its argument, and the name that the key has there.

    A key is a name without its dashes, or a variable.
    """
    known = {name.lstrip("-"): (each, name) for each in arguments_in(takes) for name in each.names}
    known |= {each.variable: (each, each.names[-1]) for each, _ in known.values() if each.variable}
    return known


def reads_config(executable: Path) -> bool:
    """Tell whether a build reads such files: those from before summer 2026 do not."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(executable.parent)
    # Upstream's own code: the libraries of CUDA have half a gigabyte.
    for name in sorted({executable.name, *(each for each in names if "common" in each)}):
        # A folder, a missing file and a larger one have no such words.
        with suppress(OSError):
            if b"using config file: " in read_foreign(executable.parent / name, _LARGEST_CODE):
                return True
    return False


def _as_variable(argument: KnownArgument, name: str, value: str) -> str:
    """Say a value of a file as the argument's variable says it."""
    if argument.values:
        return value
    negative = _negative(name, argument.names)
    if not negative and not any(_negative(each, argument.names) for each in argument.names):
        return "1"  # a flag that nothing negates counts whatever its value is
    return "1" if (value in _TRUE) != negative else "0"


def _negative(name: str, names: Sequence[str]) -> bool:
    """Tell whether a name negates an argument that has these names, such as ``-nkvo``."""
    others = {each.lstrip("-") for each in names}
    return any(
        name.startswith(f"{dashes}{no}") and name[len(dashes + no) :] in others
        for dashes, no in (("--", "no-"), ("-", "no-"), ("-", "no"), ("-", "n"))
    )
