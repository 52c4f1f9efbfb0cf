"""The expressions of workflows, ``${{ … }}``, evaluated as the build service does.

Source: "Evaluate expressions in workflows and actions" in the build service's documentation.
A value that only a run knows is ``UNKNOWN``: it makes unknown what depends on it, and nothing else.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from tsuku_publish.upstream.source.marked import Text, UnreadableSource, Value


class Unknown(Enum):
    """The type of ``UNKNOWN``."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN
Known = Value | Unknown
Condition = bool | Unknown
Lookup = Callable[[tuple[str, ...]], Known]
"""Returns the value of a path such as ``("matrix", "os")``; null if there is none."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0x[0-9a-fA-F]+|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!().,\[\]]))"
)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_SPACE = re.compile(r"\s*")


def evaluate(text: str, lookup: Lookup, at: str) -> Known:
    """Return the value of what is between ``${{`` and ``}}``. Raises ``UnreadableSource``."""
    return _Parser(text, lookup, at).whole()


def filled(text: str, lookup: Lookup, at: str) -> str | Unknown:
    """Return a text with its expressions' values. Raises ``UnreadableSource``."""

    def value(match: re.Match[str]) -> str | Unknown:
        found = evaluate(match[1], lookup, at)
        return UNKNOWN if found is UNKNOWN else as_text(found)

    return replaced(_EXPRESSION, value, text)


def replaced(
    pattern: re.Pattern[str], value: Callable[[re.Match[str]], str | Unknown], text: str
) -> str | Unknown:
    """Return a text with a value in place of each match; unknown if one of the values is."""
    values = [value(match) for match in pattern.finditer(text)]
    known = iter([each for each in values if each is not UNKNOWN])
    return UNKNOWN if UNKNOWN in values else pattern.sub(lambda _: next(known), text)


def value_of(text: Text, lookup: Lookup) -> Known:
    """Return what a scalar means: the value of its only expression, or its text, filled."""
    if match := _EXPRESSION.fullmatch(text.strip()):
        return evaluate(match[1], lookup, text.at)
    return filled(text, lookup, text.at) if "${{" in text else text.value


def holds(condition: Text | None, lookup: Lookup) -> Condition:
    """Return whether an ``if`` is true; true without one. Raises ``UnreadableSource``."""
    if condition is None:
        return True
    bare = condition.strip()
    inner = _EXPRESSION.fullmatch(bare)
    found = evaluate(inner[1] if inner else bare, lookup, condition.at)
    return UNKNOWN if found is UNKNOWN else truth(found)


def as_text(value: Known) -> str:
    """Return a value as an expression within a text gives it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def truth(value: Known) -> bool:
    """Return whether a known value counts as true: all but false, 0, "" and null."""
    return value not in (False, 0.0, "", None)


def _number(value: Known) -> float:
    if value is None or value == "":
        return 0.0
    try:
        return float(value) if isinstance(value, str | float | bool) else float("nan")
    except ValueError:
        return float("nan")


_COMPARISONS: Mapping[str, Callable[[str | float, str | float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def _compared(sign: str, left: Known, right: Known) -> Known:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(left, str) and isinstance(right, str):
        # Texts are compared without case.
        return _COMPARISONS[sign](left.casefold(), right.casefold())
    return _COMPARISONS[sign](_number(left), _number(right))


def _format(values: Sequence[Known]) -> Known:
    pattern, *rest = (as_text(each) for each in values)

    def part(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else rest[int(match[1])]

    return re.sub(r"\{\{|\}\}|\{([0-9]+)\}", part, pattern)


_FUNCTIONS: dict[str, tuple[int, Callable[[Sequence[Known]], Known]]] = {
    "contains": (2, lambda v: as_text(v[1]).casefold() in as_text(v[0]).casefold()),
    "startswith": (2, lambda v: as_text(v[0]).casefold().startswith(as_text(v[1]).casefold())),
    "endswith": (2, lambda v: as_text(v[0]).casefold().endswith(as_text(v[1]).casefold())),
    "format": (-1, _format),
    "success": (0, lambda _: True),
    "always": (0, lambda _: True),
    "failure": (0, lambda _: False),
    "cancelled": (0, lambda _: False),
    "hashfiles": (-1, lambda _: UNKNOWN),
}
"""Each function with the number of its arguments, -1 for any; a release is a run that succeeds."""


class _Parser:
    """One expression, read from left to right; a short circuit still reads its other side."""

    def __init__(self, text: str, lookup: Lookup, at: str) -> None:
        self._text = text
        self._lookup = lookup
        self._at = at
        self._tokens = [*self._split()]
        self._next = 0

    def whole(self) -> Known:
        found = self._or()
        if self._next < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._next][1]} is not expected")
        return found

    def _split(self) -> list[tuple[str, str]]:
        tokens, place = [], 0
        while place < len(self._text) and _SPACE.fullmatch(self._text, place) is None:
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise self._wrong("it cannot be understood")
            tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()
        return tokens

    def _wrong(self, reason: str) -> UnreadableSource:
        return UnreadableSource(self._at, f"the expression {self._text.strip()}: {reason}")

    def _take(self, *signs: str) -> str | None:
        if self._next < len(self._tokens):
            kind, token = self._tokens[self._next]
            if kind == "sign" and token in signs:
                self._next += 1
                return token
        return None

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._wrong(f"{sign} is missing")

    def _or(self) -> Known:
        left = self._and()
        while self._take("||"):
            right = self._and()
            if left is UNKNOWN:
                # A true right side decides only whether, not what: the left one may be the value.
                continue
            left = left if truth(left) else right
        return left

    def _and(self) -> Known:
        left = self._comparison()
        while self._take("&&"):
            right = self._comparison()
            if left is UNKNOWN:
                left = UNKNOWN if right is UNKNOWN or truth(right) else False
            else:
                left = right if truth(left) else left
        return left

    def _comparison(self) -> Known:
        left = self._unary()
        while sign := self._take(*_COMPARISONS):
            left = _compared(sign, left, self._unary())
        return left

    def _unary(self) -> Known:
        if self._take("!"):
            found = self._unary()
            return negated(UNKNOWN if found is UNKNOWN else truth(found))
        if self._take("("):
            found = self._or()
            self._expect(")")
            return found
        if self._next >= len(self._tokens):
            raise self._wrong("it ends too early")
        kind, token = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            return float(int(token, 16) if token.startswith("0x") else float(token))
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "sign":
            raise self._wrong(f"{token} is not expected")
        return self._named(token)

    def _named(self, name: str) -> Known:
        if self._take("("):
            return self._call(name)
        if name in _WORDS:
            return _WORDS[name]
        path = [name]
        while sign := self._take(".", "["):
            kind, token = self._tokens[self._next] if self._next < len(self._tokens) else ("", "")
            if (sign, kind) not in ((".", "name"), ("[", "text")):
                raise self._wrong(f"what follows {'.'.join(path)} cannot be read")
            self._next += 1
            path.append(token if sign == "." else token[1:-1])
            if sign == "[":
                self._expect("]")
        return self._lookup(tuple(path))

    def _call(self, name: str) -> Known:
        if name.lower() not in _FUNCTIONS:
            raise self._wrong(f"the function {name} is not known")
        count, function = _FUNCTIONS[name.lower()]
        values: list[Known] = []
        if not self._take(")"):
            values.append(self._or())
            while self._take(","):
                values.append(self._or())
            self._expect(")")
        if count not in (-1, len(values)):
            raise self._wrong(f"{name} takes {count} values")
        return UNKNOWN if UNKNOWN in values else function(values)


# --- conditions, of which any may be unknown ----------------------------------------------------


def negated(condition: Condition) -> Condition:
    """Return the contrary of a condition."""
    return UNKNOWN if condition is UNKNOWN else not condition


def every(conditions: Iterable[Condition]) -> Condition:
    """Return whether all conditions hold; a false one decides it, whatever the unknown ones are."""
    found = [*conditions]
    return False if False in found else UNKNOWN if UNKNOWN in found else True


def either(conditions: Iterable[Condition]) -> Condition:
    """Return whether one of the conditions holds; a true one decides it."""
    found = [*conditions]
    return True if True in found else UNKNOWN if UNKNOWN in found else False


class Branches:
    """The open branches of ``if``, one within another, of a script or a CMake file.

    ``runs`` says whether what follows is run.
    """

    def __init__(self) -> None:
        # For each open "if": whether this branch runs, and whether it or one before it does.
        self._open: list[tuple[Condition, Condition]] = []

    def begin(self, here: Condition) -> None:
        """Begin an ``if``."""
        self._open.append((here, here))

    def go_on(self, here: Condition) -> None:
        """Begin an ``elif``; an ``else`` is one that is true."""
        if self._open:
            before = self._open.pop()[1]
            self._open.append((every((negated(before), here)), either((before, here))))

    def end(self) -> None:
        """End an ``if``."""
        if self._open:
            self._open.pop()

    @property
    def runs(self) -> Condition:
        """Whether the present place runs; unknown if a condition on the way there is."""
        return every(runs for runs, _ in self._open)
