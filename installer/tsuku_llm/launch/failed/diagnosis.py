"""The diagnosis of a failed start: its last output and exit code, looked up. Pure.

The rows are in ``causes.toml``, which says what its keys mean. To add a cause, see CONTRIBUTING.
"""

from __future__ import annotations

import pkgutil
import re
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import tomli

from tsuku_llm.ground.own_name import SUDO, TSUKU
from tsuku_llm.launch.ask.last_words import complaints, last_lines, quoted
from tsuku_llm.launch.plan.build_arguments import in_words_of
from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, REINSTALL_COMMAND, package_of

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


_CONFIG = re.compile(r"using config file: (\S[^\r\n]*)")
_GOES_ON = re.compile(r"load_model: |starting server|build_info: ")
"""What the server says after it has read its arguments."""


class _Hit(NamedTuple):
    """A row that matches on a line; ``line`` is the number of the match's last line."""

    line: int
    row: int
    cause: Cause
    found: re.Match[str]


def diagnose(
    code: int, text: str, *, distribution: str = "", oom_killed: bool = False
) -> Diagnosis | None:
    """Explain an end by its last output and its exit code (negative: minus the signal).

    The output of the server or its loader counts before the code: an abort usually follows
    an explanation. None if nothing is recognised. ``distribution`` is a result
    of ``packages.family_of``. ``oom_killed``: the kernel killed a process meanwhile because
    memory ran out.
    """
    by_code = _by_code(code, oom_killed=oom_killed)
    # A signal from outside has nothing to do with what was said before.
    if by_code and by_code.slug in ("killed", "oom-killed", "ended-from-outside"):
        return by_code
    # A file of presets gets the same words.
    if any(f"parse server config file: {each}" in text for each in _CONFIG.findall(text)):
        return after_config(text)
    found = _by_text(text, distribution)
    if found is None and by_code and by_code.slug == "crashed":
        # Nothing that is known: its last words may tell more to the reader.
        return replace(by_code, facts=(*last_lines(text, 3), *by_code.facts))
    return found or by_code


def unknown(text: str, *, served: bool = False) -> Diagnosis:
    """Return the diagnosis of an end that nothing explains, with the last lines as facts.

    ``served``: it had served before.
    """
    early = "" if served else " before it served"
    facts, again = last_lines(text), "start it again with -lv 4 after the --"
    return Diagnosis(
        "unknown",
        f"it ended{early}, and this program does not know why",
        f"read its last lines; for more of them, {again}" if facts else again,
        facts=facts or ("it said nothing",),
        fault="unknown",
    )


def after_config(text: str) -> Diagnosis | None:
    """Explain an end after the server has read upstream's ``config.ini``, by the last such line.

    Of a wrong value in it the server says no more than "stoi".
    """
    files = _CONFIG.findall(text)
    if not files or _GOES_ON.search(text):
        return None
    return Diagnosis(
        "config-file",
        f"a value in {files[-1]} is wrong",
        f"correct or remove {files[-1]}: the server reads it before its arguments",
        facts=last_lines(text),
        fault="arguments",
    )


def ending(code: int) -> str:
    """Say how a process ended, to follow "it"."""
    name = signal_name(code)
    if name:
        return f"was ended by {name}"
    # Windows' own codes are known in hexadecimal.
    return f"ended with exit code {code}" if 0 <= code < 1 << 16 else f"ended with {code:#X}"


def signal_name(code: int) -> str | None:
    """Name the signal of a negative exit code; None for other codes."""
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return f"signal {-code}"


def _by_text(text: str, distribution: str) -> Diagnosis | None:
    """Find the last cause in time.

    One cause often shows in several lines that follow each other. Among these the row that comes
    first in the table counts, as it says the most.
    """
    said = "\n".join(complaints(text))
    hits = [
        _Hit(said.count("\n", 0, found.end()), row, cause, found)
        for row, cause in enumerate(known_causes()[0])
        for found in re.finditer(cause.pattern, said, re.IGNORECASE)
    ]
    # One row for each line: rows are sorted, so the first one is the narrowest.
    by_line = {hit.line: hit for hit in sorted(hits, reverse=True, key=lambda hit: hit[:2])}
    in_time = [by_line[line] for line in sorted(by_line)]
    if not in_time:
        return None
    # What only follows from a cause counts if no cause was said.
    lowest = min(hit.cause.rank for hit in in_time)
    causes = [hit for hit in in_time if hit.cause.rank == lowest]
    best = causes[-1]
    for hit in reversed(causes):
        if hit.cause.told.slug != best.cause.told.slug:
            break
        best = min(best, hit, key=lambda each: each.row)
    # A later line may tell which argument the file came from.
    options = [hit.cause.option for hit in in_time if hit.cause.option and hit.line >= best.line]
    # Fill in the row, and quote the line by which it was recognised.
    found = best.found
    end = said.find("\n", found.start())
    line = quoted(said[said.rfind("\n", 0, found.start()) + 1 : end if end >= 0 else None])
    # A row may not find everything that it names.
    named = defaultdict(str, {"option": options[0] if options else "-m", "line": line})
    # ``library_musl`` and ``library_dyld`` become ``library``; only one of them matched.
    named.update(
        {name.split("_")[0]: value.strip() for name, value in found.groupdict().items() if value}
    )
    named["package"] = package_of(named["library"], distribution)
    filled = best.cause.diagnosis(named, line)
    return replace(filled, cause=quoted(filled.cause), fix=quoted(filled.fix))


def _by_code(code: int, *, oom_killed: bool) -> Diagnosis | None:
    name, fact = signal_name(code) or "", f"it {ending(code)}"
    # The counter is the whole machine's: only together with SIGKILL does it mean our server.
    if name == "SIGKILL" and oom_killed:
        name, fact = "oom_kill", "oom_kill in /proc/vmstat rose while it ran"
    ends = known_causes()[1]
    cause = ends.get(name)
    if cause is None:
        status = code & 0xFFFFFFFF  # Windows' own codes may come as negative numbers
        name, fact = f"0x{status:X}", f"exit code {status:#X}"
        cause = ends.get(name)
    return cause.diagnosis({"end": name}, fact) if cause else None
