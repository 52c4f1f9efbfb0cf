"""Recorded machines: every raw answer of a host, written to a file and replayed.

A recording holds answers and no conclusions, so that it reproduces a parser's mistake. Users attach
it to public bug reports. So home folders, the names of the machine and its user, serial numbers and
device UUIDs are removed before it is written.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import SnapshotError
from tsuku_llm.ground.files import replace_output
from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.host import ABSENT, Answers, ChildProgram, DriverAnswer, Host, Raw

FORMAT = 1
SIZE_LIMIT = 4 << 20
_LONGEST = 86400  # seconds that a question may have had: more is no recorded limit

Names = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of a file. A developer adds ``source`` and ``expect`` to make it a test."""

    system: Mapping[str, Raw]
    environment: dict[str, str | None] = field(default_factory=dict)
    files: dict[str, str | None] = field(default_factory=dict)
    folders: dict[str, Names | None] = field(default_factory=dict)
    access: dict[str, str | None] = field(default_factory=dict)
    answers: dict[str, DriverAnswer] = field(default_factory=dict)
    source: str | None = None
    expect: Mapping[str, Any] | None = None


class RecordingHost:
    """A host that keeps every answer of the host behind it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._recording = Recording(system=host.system())
        self.name = host.name

    def system(self) -> Mapping[str, Raw]:
        """Answer as ``Host`` describes, from the recording."""
        return self._recording.system

    def read_text(self, path: str) -> str | None:
        """Answer as ``Host`` describes, and record the text, or what of it is asked for."""

        def read(path: str) -> str | None:
            text, cut = self._host.read_text(path), _CUT.get(path)
            return cut(text) if cut and text is not None else text

        return _once(self._recording.files, path, read)

    def list_dir(self, path: str) -> Names | None:
        """Answer as ``Host`` describes, and record the names."""
        return _once(self._recording.folders, path, self._host.list_dir)

    def access(self, path: str) -> str | None:
        """Answer as ``Host`` describes, and record the rights."""
        return _once(self._recording.access, path, self._host.access)

    def lacks(self, path: str) -> bool:
        """Answer as ``Host`` describes, from what ``access`` records."""
        return self.access(path) is None

    def environment(self, name: str) -> str | None:
        """Answer as ``Host`` describes, and record the variable."""
        return _once(self._recording.environment, name, self._host.environment)

    def ask(self, program: ChildProgram, questions: Sequence[str], limit: float) -> Answers:
        """Ask as ``Host`` describes, and record the answers when they are waited for."""
        wait = self._host.ask(program, questions, limit)

        def wait_and_keep() -> Mapping[str, DriverAnswer]:
            answers = wait()
            self._recording.answers.update(answers)
            return answers

        return wait_and_keep

    def content(self) -> dict[str, Any]:
        """Return the content of the file, without data that identifies a machine or a person."""
        content = {key: value for key, value in asdict(self._recording).items() if value}
        cleaned: dict[str, Any] = Scrubber(_own_names()).clean({"format": FORMAT, **content})
        return cleaned

    def save(self, path: Path) -> None:
        """Write the recording.

        Raises ``SnapshotError`` if the file cannot be written.
        """
        text = json.dumps(self.content(), indent=1, ensure_ascii=False)
        try:
            replace_output(path, text + "\n")
        except (OSError, ValueError) as error:
            raise SnapshotError(
                f"the recording cannot be written to {path}",
                facts=(getattr(error, "strerror", None) or str(error),),
                hint=f"choose another file: {TSUKU} probe --record FILE",
            ) from error


def _container_of(environment: str) -> str:
    """Keep the one variable that tells the container's runtime; the others may be secrets."""
    return "".join(f"{each}\0" for each in environment.split("\0") if each.startswith("container="))


def _mount_points(mounts: str) -> str:
    """Keep where the root is mounted, and the type; others name folders and servers of the user."""
    halves = (line.partition(" - ") for line in mounts.splitlines())
    rows = ((head.split(" ")[:5], tail.partition(" ")[0]) for head, _, tail in halves)
    kept = (f"{' '.join(row)} - {kind}\n" for row, kind in rows if row[4:] == ["/"])
    return "".join(kept) or "none\n"


_CUT: Mapping[str, Callable[[str], str]] = {
    "/proc/1/environ": _container_of,
    "/proc/1/mountinfo": _mount_points,
    "/proc/self/mountinfo": _mount_points,
}
"""The files of which a recording has a part only."""


def _once(known: dict[str, T], key: str, ask: Callable[[str], T]) -> T:
    # Ask once only: a second question could get another answer than the one recorded.
    if key not in known:
        known[key] = ask(key)
    return known[key]


class ReplayHost:
    """A recorded machine; ``name`` is the recording's file name.

    A question that is not in the recording is answered with "absent".
    """

    def __init__(self, recording: Recording, name: str) -> None:
        self.recording = recording
        self.name = name

    @classmethod
    def load(cls, path: Path) -> ReplayHost:
        """Read a recording.

        Raises ``SnapshotError`` if the file cannot be read or is not a recording.
        """
        try:
            return cls(parse_recording(read_foreign(path, SIZE_LIMIT)), path.name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SnapshotError(
                f"{path} is not a recorded machine",
                facts=(reason[:300],),
                hint=f"make one with: {TSUKU} probe --record FILE",
            ) from error

    def system(self) -> Mapping[str, Raw]:
        """Answer as ``Host`` describes, from the recording."""
        return self.recording.system

    def read_text(self, path: str) -> str | None:
        """Answer as ``Host`` describes, from the recording."""
        return self.recording.files.get(path)

    def list_dir(self, path: str) -> Names | None:
        """Answer as ``Host`` describes, from the recording."""
        return self.recording.folders.get(path)

    def access(self, path: str) -> str | None:
        """Answer as ``Host`` describes, from the recording."""
        return self.recording.access.get(path)

    def lacks(self, path: str) -> bool:
        """Answer as ``Host`` describes: a question that was not recorded tells nothing."""
        return path in self.recording.access and self.recording.access[path] is None

    def environment(self, name: str) -> str | None:
        """Answer as ``Host`` describes, from the recording."""
        return self.recording.environment.get(name)

    def ask(self, program: ChildProgram, questions: Sequence[str], limit: float) -> Answers:
        """Answer from the recording; ``program`` and ``limit`` change nothing."""
        del program, limit
        known = self.recording.answers
        return lambda: {question: known.get(question, ABSENT) for question in questions}


# --- the file's shape --------------------------------------------------------------------


def parse_recording(data: bytes) -> Recording:
    """Read a recording.

    Raises ``ValueError`` that says what is wrong with it.
    """
    return _READ(parse_object(data), "it")


def _limit(raw: Any, _: str) -> float | None:
    """Return the seconds that a question had; None for what no question can have had."""
    # bool is a subclass of int.
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return None
    return raw if 0 < raw < _LONGEST else None


def _scalar(raw: Any, name: str) -> Raw:
    return raw if isinstance(raw, int) else _TEXT(raw, name)


_TEXT = records.optional(records.text)
_ANSWER = records.record(
    DriverAnswer,
    {"lines": records.many(records.mapping), "limit": _limit},
    since={"lines": [], "end": "done"},
)
_READ = records.record(
    Recording,
    {
        "system": records.named(_scalar),
        **dict.fromkeys(("environment", "files", "access"), records.named(_TEXT)),
        "folders": records.named(records.optional(records.many(records.text))),
        "answers": records.named(_ANSWER),
        "expect": records.optional(records.mapping),
    },
    format=FORMAT,
    since={key: {} for key in ("system", "environment", "files", "folders", "access", "answers")},
)

# --- scrubbing ---------------------------------------------------------------------------

_HOME = re.compile(r"(?i)/(?:home|users)/[^/:;\s\"']+|[a-z]:\\users\\[^\\:;\"'\n]+")
_SERIAL = re.compile(r"(?im)^(serial\s*:).*$")
_UUID = re.compile(r"(?i)\b(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_IMPERSONAL = ("root", "localhost")
_SHORTEST_NAME = 4  # shorter ones ("vm", "pi") are also parts of other words


class Scrubber:
    """A filter that removes from answers what identifies a person or a machine.

    The same UUID becomes the same ``uuid-N`` everywhere, as two APIs may list one card.
    """

    def __init__(self, names: Sequence[str]) -> None:
        known = {name for name in names if len(name) >= _SHORTEST_NAME} - set(_IMPERSONAL)
        # The longest names first: a host name may begin with its short form.
        words = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        self._names = re.compile(rf"(?i)(?<![a-z0-9])(?:{words})(?![a-z0-9])") if known else None
        self._uuids: dict[str, str] = {}

    def clean(self, value: Any) -> Any:
        """Return the same value with every text cleaned, also in keys."""
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, dict):
            return {self._clean_text(str(key)): self.clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        return value

    def _clean_text(self, text: str) -> str:
        text = _SERIAL.sub(r"\1 removed", _HOME.sub("~", text))
        text = _UUID.sub(self._ordinal, text)
        return self._names.sub("removed", text) if self._names else text

    def _ordinal(self, match: re.Match[str]) -> str:
        key = match[0].replace("-", "").lower()
        return self._uuids.setdefault(key, f"uuid-{len(self._uuids) + 1}")


def _own_names() -> list[str]:
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    # A container's user may be a number without a name: then there is no name to hide.
    with contextlib.suppress(OSError, KeyError, ImportError):
        names.append(getpass.getuser())
    return names
