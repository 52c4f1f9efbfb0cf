"""The causes of failed starts: the rows of ``causes.toml``, and the value that one of them gives.

``causes.toml`` says what its keys mean. To add a cause, see CONTRIBUTING.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import tomli

from tsuku_llm.ground.own_name import SUDO, TSUKU
from tsuku_llm.launch.plan.build_arguments import in_words_of
from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, REINSTALL_COMMAND

Fault = Literal["backend", "model", "arguments", "system", "unknown"]
"""Whose fault a failed start is: what has to change before the server can start.

Another variant helps only against the backend's fault. Too little memory is the model's: another
backend has the same memory.
"""

CPU_OVERRIDE = f"{TSUKU} config set llm.backend cpu"

_OF_ONES_OWN = "install --force --from"
"""What the command that installs an unsigned build again has: from its path, or its source."""
_FOR_ONES_OWN = {
    FOR_THIS_MACHINE: "make a build for this machine, then",
    REINSTALL: "install it again from complete files:",
    f"{TSUKU} update": "make a newer one, then",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause and one fix; ``override`` is a command that avoids the cause, or empty.

    ``facts`` are the lines or codes by which the cause was recognised, unchanged. ``fault``
    decides whether another variant may be started instead.
    """

    slug: str
    cause: str
    fix: str
    override: str = ""
    facts: tuple[str, ...] = ()
    fault: Fault = field(kw_only=True)

    def hint(self, backend: str, reinstall: str, takes: Sequence[str] = ()) -> str:
        """Say in one line what to do; the CPU is offered only if ``backend`` is a GPU's.

        ``takes`` are the arguments of the build: the hint names only those.
        ``reinstall`` is the command that installs this build again, "" if it is not known: without
        its release and variant, another build may be installed.
        """
        fix = in_words_of(self.fix, takes)
        if _OF_ONES_OWN in reinstall:
            # The same files would fail again, and ``update`` leaves such a build alone.
            for advice, own in _FOR_ONES_OWN.items():
                fix = fix.replace(advice, f"{own} {REINSTALL_COMMAND}")
        fix = fix.replace(REINSTALL_COMMAND, reinstall or REINSTALL_COMMAND)
        if not self.override or backend == "cpu":
            return fix
        return f"{fix}; or run on the CPU: {self.override}"


class Cause(NamedTuple):
    """A row of ``causes.toml``; ``pattern`` is empty in a row about an end without words.

    ``told`` is the diagnosis with the names of what is found in braces.
    """

    told: Diagnosis
    pattern: str = ""
    rank: int = 0
    option: str = ""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Cause:
        """Make a cause of the keys of a row."""
        own = {key: row.pop(key) for key in cls._fields if key in row}
        override = CPU_OVERRIDE if row.pop("on_cpu", False) else ""
        return cls(Diagnosis(**row, override=override), **own)

    def diagnosis(self, named: Mapping[str, str], fact: str) -> Diagnosis:
        """Fill in the texts with what was ``named`` where the cause was recognised."""
        cause, fix = self.told.cause.format_map(named), self.told.fix.format_map(named)
        return replace(self.told, cause=cause, fix=fix, facts=(fact,))


@cache
def known_causes() -> tuple[tuple[Cause, ...], Mapping[str, Cause]]:
    """Return the rows that the output tells, in order, and by its name those of an end alone.

    Only a failed start reads them.
    """
    table = tomli.loads(
        (pkgutil.get_data("tsuku_llm.launch.failed", "causes.toml") or b"").decode()
    )
    ours = {
        "TSUKU": TSUKU,
        "SUDO": SUDO,
        "REINSTALL_COMMAND": REINSTALL_COMMAND,
        "REINSTALL": REINSTALL,
        "FOR_THIS_MACHINE": FOR_THIS_MACHINE,
    }
    # The path of this program may have braces, and ``Cause.diagnosis`` fills in the texts.
    texts = {name: words.replace("{", "{{").replace("}", "}}") for name, words in ours.items()}

    def whole(value: Any) -> Any:
        if not isinstance(value, (str, list)):
            return value
        text = "".join(value)  # a long pattern is an array of its parts
        for name, words in texts.items():
            text = text.replace(f"{{{name}}}", words)
        return text

    for name, words in table["texts"].items():
        texts[name] = whole(words)
    said = [Cause.of({key: whole(value) for key, value in row.items()}) for row in table["cause"]]
    ends = {}
    for row in table["end"]:
        names = row.pop("by")
        cause = Cause.of({key: whole(value) for key, value in row.items()})
        ends.update(dict.fromkeys(names, cause))
    return tuple(said), ends
