"""CMake files: the defaults of options, lists that depend on a version, presets and toolchains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tsuku_llm.ground.foreign import parse_object
from tsuku_publish.upstream.source.branches import Branches, Condition
from tsuku_publish.upstream.source.expressions import UNKNOWN, Unknown
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
    """One command of a CMake file; ``quoted`` says which of its words are in quotation marks."""

    name: str
    words: tuple[str, ...]
    at: str


def commands_of(path: str, text: str) -> Iterator[CMakeCommand]:
    """Return the commands of a file in its order."""
    place = 0
    while match := _COMMAND.search(text, place):
        words, depth, place = [], 1, match.end()
        while depth:
            found = _ARGUMENT.search(text, place)
            if found is None:
                raise UnreadableSource(_at(path, text, match.start(1)), "this command has no end")
            place = found.end()
            if found[2]:
                depth += 1 if found[2] == "(" else -1
                words += [found[2]] if depth else []
            elif found[0][0] != "#":
                words.append(found[1] if found[1] is not None else found[3])
        yield CMakeCommand(match[1].lower(), tuple(words), _at(path, text, match.start(1)))


def run(commands: Iterable[CMakeCommand], variables: Variables) -> None:
    """Set what the commands set. A condition that cannot be told makes unknown what depends on it.

    Only ``option``, ``set`` and ``list(APPEND …)`` are done; nothing else sets what we ask for.
    """
    branches = Branches()
    for command in commands:
        if command.name == "if":
            branches.begin(holds(command.words, variables))
        elif command.name == "elseif":
            branches.go_on(holds(command.words, variables))
        elif command.name == "else":
            branches.go_on()
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
    elif name == "set" and words and not _is_cached(words, variables):
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


def _is_cached(words: Sequence[str], variables: Variables) -> bool:
    return "CACHE" in words and words[0] in variables


def _filled(word: str, variables: Variables) -> str | Unknown:
    names = _REFERENCE.findall(word)
    if any(variables.get(name, (UNKNOWN,))[0] is UNKNOWN for name in names):
        return UNKNOWN
    return _REFERENCE.sub(lambda match: str(variables[match[1]][0]), word)


def holds(words: Sequence[str], variables: Variables) -> Condition:
    """Return whether a condition of ``if`` is true: NOT, AND, OR, parentheses and comparisons."""
    found, rest = _any(words, variables)
    return UNKNOWN if rest else found


def _any(words: Sequence[str], variables: Variables) -> tuple[Condition, Sequence[str]]:
    left, words = _all(words, variables)
    while words[:1] in (("OR",), ["OR"]):
        right, words = _all(words[1:], variables)
        left = True if True in (left, right) else UNKNOWN if UNKNOWN in (left, right) else False
    return left, words


def _all(words: Sequence[str], variables: Variables) -> tuple[Condition, Sequence[str]]:
    left, words = _one(words, variables)
    while words[:1] in (("AND",), ["AND"]):
        right, words = _one(words[1:], variables)
        left = False if False in (left, right) else UNKNOWN if UNKNOWN in (left, right) else True
    return left, words


def _one(  # noqa: PLR0911 - one for each form
    words: Sequence[str], variables: Variables
) -> tuple[Condition, Sequence[str]]:
    if not words:
        return UNKNOWN, words
    if words[0] == "NOT":
        found, rest = _one(words[1:], variables)
        return (UNKNOWN if found is UNKNOWN else not found), rest
    if words[0] == "(":
        found, rest = _any(words[1:], variables)
        return found, rest[1:]
    if words[0] == "DEFINED" and len(words) > 1:
        return words[1] in variables, words[2:]
    if words[1:2] and words[1] in _COMPARISONS and words[2:]:
        left, right = (_meaning(words[each], variables) for each in (0, 2))
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN, words[3:]
        return _COMPARISONS[words[1]](left, right), words[3:]
    value = variables.get(words[0], (UNKNOWN,))[0]
    return (UNKNOWN if value is UNKNOWN else is_on(value)), words[1:]


def is_on(value: str) -> bool:
    """Return whether CMake takes a value for true."""
    upper = value.upper()
    return upper not in ("", "0", "OFF", "NO", "FALSE", "N", "IGNORE") and not upper.endswith(
        "NOTFOUND"
    )


def _meaning(word: str, variables: Variables) -> str | Unknown:
    return variables[word][0] if word in variables else _filled(word, variables)


def version(text: str) -> tuple[int, ...]:
    """Return a version's numbers."""
    return tuple(int(each) for each in re.findall(r"[0-9]+", text)[:4])


def _order(left: str, right: str) -> int:
    size = max(len(version(left)), len(version(right)))
    first, second = ((*version(each), *[0] * (size - len(version(each)))) for each in (left, right))
    return (first > second) - (first < second)


_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "VERSION_LESS": lambda left, right: _order(left, right) < 0,
    "VERSION_LESS_EQUAL": lambda left, right: _order(left, right) <= 0,
    "VERSION_EQUAL": lambda left, right: _order(left, right) == 0,
    "VERSION_GREATER_EQUAL": lambda left, right: _order(left, right) >= 0,
    "VERSION_GREATER": lambda left, right: _order(left, right) > 0,
    "STREQUAL": lambda left, right: left == right,
}


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
    commands = []
    for command in commands_of(CUDA, text):
        if command.name == "enable_language":
            break  # what follows uses the list, or makes 12Xa of 12X: see below
        commands.append(command)
    run(commands, variables)
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


def _at(path: str, text: str, place: int) -> str:
    return f"{path}:{text.count(chr(10), 0, place) + 1}"
