"""CMake files: the defaults of options, lists that depend on a version, presets and toolchains."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tsuku_llm.ground.foreign import parse_object
from tsuku_publish.upstream.source.expressions import (
    UNKNOWN,
    Branches,
    Condition,
    Unknown,
    either,
    every,
    negated,
    replaced,
)
from tsuku_publish.upstream.source.marked import Fact, UnreadableSource
from tsuku_publish.upstream.source.scripts import ScriptCommand
from tsuku_publish.upstream.source.tree import SourceTree

Variables = dict[str, tuple[str | Unknown, str]]
"""The value of each variable and the line that set it."""

CUDA = "ggml/src/ggml-cuda/CMakeLists.txt"
_COMMAND = re.compile(r"^[ \t]*([A-Za-z_]\w*)[ \t]*\(", re.MULTILINE)
_ARGUMENT = re.compile(r'#[^\n]*|"((?:[^"\\]|\\.)*)"|([()])|([^\s()"#]+)')
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_ARCHITECTURE = re.compile(r"([0-9]+?)([0-9])([af]?)(?:-(real|virtual))?")
_PLAIN_BLACKWELL = re.compile(r"(12[0-9])((?:-real|-virtual)?)")
_MADE_SPECIFIC = r'"\\1a\\2"'
"""What CMake's file has where it makes 12Xa of each plain 12X."""


@dataclass(frozen=True, slots=True)
class CMakeCommand:
    """One command of a CMake file, and its place."""

    name: str
    words: tuple[str, ...]
    at: str


def commands_of(path: str, text: str) -> Iterator[CMakeCommand]:
    """Return the commands of a file in its order."""
    place = 0
    while match := _COMMAND.search(text, place):
        at = f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}"
        words, depth, place = [], 1, match.end()
        while depth:
            found = _ARGUMENT.search(text, place)
            if found is None:
                raise UnreadableSource(at, "this command has no end")
            place = found.end()
            if found[2]:
                depth += 1 if found[2] == "(" else -1
                words += [found[2]] if depth else []
            elif found[0][0] != "#":
                words.append(found[1] if found[1] is not None else found[3])
        yield CMakeCommand(match[1].lower(), tuple(words), at)


def run(commands: Iterable[CMakeCommand], variables: Variables) -> None:
    """Set what the commands set. A condition that cannot be told makes unknown what depends on it.

    Only ``option``, ``set`` and ``list(APPEND …)`` are done; nothing else sets what we ask for.
    """
    branches = Branches()
    for command in commands:
        if command.name == "if":
            branches.begin(_holds(command.words, variables))
        elif command.name == "elseif":
            branches.go_on(_holds(command.words, variables))
        elif command.name == "else":
            branches.go_on(here=True)
        elif command.name == "endif":
            branches.end()
        elif branches.runs is not False:
            _do(command, variables, certain=branches.runs is True)


def _do(command: CMakeCommand, variables: Variables, *, certain: bool) -> None:
    name, words = command.name, command.words
    if name == "option" and words:
        # A variable that is set already, such as by -D, keeps its value.
        _, _, *told = words
        default = _filled(told[0], variables) if told else "OFF"
        variables.setdefault(words[0], (default if certain else UNKNOWN, command.at))
    elif name == "set" and words and not ("CACHE" in words and words[0] in variables):
        values = words[1 : words.index("CACHE")] if "CACHE" in words else words[1:]
        found = [_filled(each, variables) for each in values if each != "PARENT_SCOPE"]
        whole = UNKNOWN if UNKNOWN in found else ";".join(map(str, found))
        variables[words[0]] = (whole if certain else UNKNOWN, command.at)
    elif name == "list" and words[:1] == ("APPEND",):
        old = variables.get(words[1], ("", command.at))[0]
        found = [_filled(each, variables) for each in words[2:]]
        whole = (
            ";".join([*([str(old)] if old else []), *map(str, found)])
            if certain and UNKNOWN not in (old, *found)
            else UNKNOWN
        )
        variables[words[1]] = (whole, command.at)


def _filled(word: str, variables: Variables) -> str | Unknown:
    return replaced(_REFERENCE, lambda match: variables.get(match[1], (UNKNOWN,))[0], word)


def _holds(words: Iterable[str], variables: Variables) -> Condition:
    """Return whether a condition of ``if`` is true: NOT, AND, OR, parentheses and comparisons."""
    found, rest = _any([*words], variables)
    return UNKNOWN if rest else found


def _any(words: list[str], variables: Variables) -> tuple[Condition, list[str]]:
    found, words = _all(words, variables)
    while words[:1] == ["OR"]:
        right, words = _all(words[1:], variables)
        found = either((found, right))
    return found, words


def _all(words: list[str], variables: Variables) -> tuple[Condition, list[str]]:
    found, words = _one(words, variables)
    while words[:1] == ["AND"]:
        right, words = _one(words[1:], variables)
        found = every((found, right))
    return found, words


def _one(words: list[str], variables: Variables) -> tuple[Condition, list[str]]:
    found: Condition = UNKNOWN
    rest: list[str] = []
    match words:
        case ["NOT", *after]:
            found, rest = _one(after, variables)
            found = negated(found)
        case ["(", *after]:
            found, rest = _any(after, variables)
            rest = rest[1:]
        case ["DEFINED", name, *rest]:
            found = name in variables
        case [left, sign, right, *rest] if sign in _COMPARISONS:
            sides = [
                variables[each][0] if each in variables else _filled(each, variables)
                for each in (left, right)
            ]
            if UNKNOWN not in sides:
                meaning, compared = _COMPARISONS[sign]
                found = compared(*map(meaning, sides))
        case [name, *rest] if name in variables:
            value = variables[name][0]
            found = UNKNOWN if value is UNKNOWN else is_on(value)
        case [_, *rest]:
            pass
    return found, rest


def is_on(value: str) -> bool:
    """Return whether CMake takes a value for true."""
    upper = value.upper()
    return upper not in ("", "0", "OFF", "NO", "FALSE", "N", "IGNORE") and not upper.endswith(
        "NOTFOUND"
    )


def _version(text: Any) -> list[int]:
    """Return a version's four numbers; those that it does not name are 0."""
    return [*map(int, re.findall(r"[0-9]+", text)), 0, 0, 0, 0][:4]


_COMPARISONS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "VERSION_LESS": (_version, operator.lt),
    "VERSION_LESS_EQUAL": (_version, operator.le),
    "VERSION_EQUAL": (_version, operator.eq),
    "VERSION_GREATER_EQUAL": (_version, operator.ge),
    "VERSION_GREATER": (_version, operator.gt),
    "STREQUAL": (str, operator.eq),
}
"""How each comparison reads its two sides, and what it asks of them."""


def defaults(source: SourceTree, *, apple: bool) -> Mapping[str, Fact]:
    """Return the default of each option of llama.cpp and ggml that can be told."""
    variables: Variables = {"APPLE": ("ON" if apple else "OFF", "")}
    for path in ("CMakeLists.txt", "ggml/CMakeLists.txt"):
        run(commands_of(path, source.read(path)), variables)
    return {
        name: Fact(value, at) for name, (value, at) in variables.items() if value is not UNKNOWN
    }


def cuda_architectures(
    source: SourceTree, toolkit: str, flags: Mapping[str, Fact]
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the machine code and the PTX of a CUDA build, such as "8.6", and the place.

    Without ``CMAKE_CUDA_ARCHITECTURES`` among the flags it is ggml's default for the toolkit's
    version. Raises ``UnreadableSource``.
    """
    text = source.read(CUDA)
    given = flags.get("CMAKE_CUDA_ARCHITECTURES")
    variables: Variables = {name: (str(fact.value), fact.at) for name, fact in flags.items()}
    variables |= {"CUDAToolkit_VERSION": (toolkit, ""), "CUDAToolkit_FOUND": ("ON", "")}
    # What follows this command uses the list, or makes 12Xa of 12X: see below.
    run(
        itertools.takewhile(lambda each: each.name != "enable_language", commands_of(CUDA, text)),
        variables,
    )
    value, at = variables.get("CMAKE_CUDA_ARCHITECTURES", (UNKNOWN, f"{CUDA}:1"))
    at = given.at if given else at
    if value is UNKNOWN:
        raise UnreadableSource(at, f"the architectures for CUDA {toolkit} cannot be told")
    sass, ptx = [], []
    for each in str(value).split(";"):
        name = each
        if plain := _PLAIN_BLACKWELL.fullmatch(each):
            if _MADE_SPECIFIC not in text:
                raise UnreadableSource(at, f"what becomes of {each} cannot be told")
            name = f"{plain[1]}a{plain[2]}"
        match = _ARCHITECTURE.fullmatch(name)
        if match is None:
            raise UnreadableSource(at, f"{each} is no architecture of CUDA that is known")
        architecture = f"{match[1]}.{match[2]}{match[3]}"
        sass += [architecture] if match[4] != "virtual" else []
        ptx += [architecture] if match[4] != "real" else []
    return tuple(sass), tuple(ptx), at


def flags_of(command: ScriptCommand, source: SourceTree) -> dict[str, Fact]:
    """Return what a call of CMake sets by ``-D`` and ``--preset``. Raises ``UnreadableSource``."""
    found: dict[str, Fact] = {}
    words = list(zip(command.words, command.places, strict=True))
    for number, (word, at) in enumerate(words):
        if word == "${unknown}":
            raise UnreadableSource(at, "this line of a call of CMake is known only in a run")
        if word == "--preset" or word.startswith("--preset="):
            name = word.partition("=")[2] or words[number + 1][0]
            found = preset(source, name, at) | found
        if word.startswith("-D"):
            text = word[2:] or words[number + 1][0]
            name, sign, value = text.partition("=")
            if not sign:
                raise UnreadableSource(at, f"this flag of CMake cannot be read: {word}")
            found[name.partition(":")[0]] = Fact(value.strip("\"'"), at)
    return found


PRESETS = ("docs/backend/snapdragon/CMakeUserPresets.json", "CMakePresets.json")
"""The files of presets; the jobs that name one copy the first of them to the top."""


def preset(source: SourceTree, name: str, at: str) -> dict[str, Fact]:
    """Return the variables that a preset sets, by name. Raises ``UnreadableSource``."""
    for path in PRESETS:
        text = source.read(path)
        try:
            presets = parse_object(text)["configurePresets"]
            for one in presets:
                if one["name"] != name:
                    continue
                parents = one.get("inherits", [])
                found: dict[str, Fact] = {}
                for each in [parents] if isinstance(parents, str) else parents:
                    found = preset(source, each, at) | found
                line = text[: text.index(f'"{name}"')].count("\n") + 1
                for key, raw in one.get("cacheVariables", {}).items():
                    value = raw["value"] if isinstance(raw, dict) else raw
                    found[key] = Fact(str(value), f"{path}:{line}")
                return found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UnreadableSource(f"{path}:1", f"its presets cannot be read: {error}") from error
    raise UnreadableSource(at, f"no file has the preset {name}")


def toolchain(source: SourceTree, path: str) -> tuple[str, str, str]:
    """Return the system and the processor that a toolchain file is for, and the place."""
    variables: Variables = {}
    run(commands_of(path, source.read(path)), variables)
    found = []
    for name in ("CMAKE_SYSTEM_NAME", "CMAKE_SYSTEM_PROCESSOR"):
        value, at = variables.get(name, (UNKNOWN, f"{path}:1"))
        if value is UNKNOWN:
            raise UnreadableSource(at, f"it sets no {name}")
        found.append(str(value))
    return found[0], found[1], variables["CMAKE_SYSTEM_NAME"][1]
