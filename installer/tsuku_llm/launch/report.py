"""The report of a start: which build runs, on which device, and how that is known.

The report is made when the server starts, and every later state of it goes to a ``Sink``.
``serve --detach`` keeps the last one on disk for ``status``. Like the receipt, it is written
and read by hand, because importing a library takes too long in a start.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from tsuku_llm.errors import CorruptStore

FORMAT = 1


class Verdict(str, enum.Enum):
    """The place where the server computes, according to all signs or to a single one."""

    ON_GPU = "on_gpu"
    ON_CPU = "on_cpu"
    UNKNOWN = "unknown"


class Sign(NamedTuple):
    """One sign of where the server computes, independent of the others.

    ``name`` is its source (``device-list``, ``buffers``, …). ``evidence`` is one line with
    what was read, unchanged.
    """

    name: str
    says: Verdict
    evidence: str


class FallenBack(NamedTuple):
    """A variant that was tried before the one that runs, and why it does not run."""

    variant: str
    reason: str


class StartReport(NamedTuple):
    """The report of one server's start.

    ``name`` is the server's among several. ``version`` is the id of the installed version,
    ``selected`` its variant. ``backend`` is the one in use, None while that is not known;
    ``device`` is the GPU in words. Memory is the device's, in bytes: ``memory_used`` by this
    server alone. ``verification`` says how the tree was compared with its receipt:
    ``fingerprint`` or ``hash``. ``pid`` is the server's, ``supervisor`` the process that
    watches it (the same after ``--exec``). ``port`` is None if the server has not said which
    one it took, or listens on a Unix socket; then ``host`` is the socket. ``started_at`` is
    in UTC, to the second. ``signals`` are the signs; stored reports and ``--json`` have that
    name. ``ready`` is true from the first good answer to ``/health`` on.
    """

    name: str
    release: str
    version: str
    requested: str
    detected: tuple[str, ...]
    selected: str
    verification: str
    supervisor: int
    pid: int
    host: str
    port: int | None
    started_at: str
    ready: bool = False
    backend: str | None = None
    verdict: Verdict = Verdict.UNKNOWN
    signals: tuple[Sign, ...] = ()
    device: str | None = None
    driver: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    layers_offloaded: int | None = None
    layers_total: int | None = None
    fallen_back_from: tuple[FallenBack, ...] = ()

    def to_json(self) -> bytes:
        """Return the report as it is stored."""
        document = {"format": FORMAT} | {
            name: _plain(value) for name, value in self._asdict().items()
        }
        return json.dumps(document, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> StartReport:
        """Parse a stored report. Raises CorruptStore for anything that is not one."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise _junk(str(exc)) from exc
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise _junk(f"it is not of format {FORMAT}")
        return cls(**{name: read(document.get(name), name) for name, read in _READERS.items()})


Sink = Callable[[StartReport], None]
"""A function that receives each state of a start, in order, in the thread that follows it.

With ``--exec`` it is called once, in the main thread, just before the exec.
"""


def _plain(value: Any) -> Any:
    if isinstance(value, (Sign, FallenBack)):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _junk(reason: str) -> CorruptStore:
    return CorruptStore(
        "the report of a start is not readable",
        facts=(reason,),
        hint="stop the server and start it again",
    )


def _refuse(value: object, name: str) -> NoReturn:
    raise _junk(f"{name} is {str(value)[:80]!r}")


# Each reader returns the value, or raises CorruptStore if it is of another type. They compare
# types exactly, as a bool is also an int.


def _text(value: Any, name: str) -> str:
    return value if type(value) is str else _refuse(value, name)


def _count(value: Any, name: str) -> int:
    return value if type(value) is int and value >= 0 else _refuse(value, name)


def _flag(value: Any, name: str) -> bool:
    return value if type(value) is bool else _refuse(value, name)


def _text_or_none(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _count_or_none(value: Any, name: str) -> int | None:
    return None if value is None else _count(value, name)


def _verdict(value: Any, name: str) -> Verdict:
    try:
        return Verdict(_text(value, name))
    except ValueError:
        _refuse(value, name)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_text(item, name) for item in _items(value, name))


def _items(value: Any, name: str) -> list[Any]:
    return value if type(value) is list else _refuse(value, name)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    return value if type(value) is dict else _refuse(value, name)


def _signals(value: Any, name: str) -> tuple[Sign, ...]:
    objects = (_object(item, name) for item in _items(value, name))
    return tuple(
        Sign(
            _text(item.get("name"), name),
            _verdict(item.get("says"), name),
            _text(item.get("evidence"), name),
        )
        for item in objects
    )


def _fallen_back(value: Any, name: str) -> tuple[FallenBack, ...]:
    objects = (_object(item, name) for item in _items(value, name))
    return tuple(
        FallenBack(_text(item.get("variant"), name), _text(item.get("reason"), name))
        for item in objects
    )


# The reader of each field; a field that is missing is read as None.
_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("name", "release", "version", "requested", "selected"), _text),
    **dict.fromkeys(("verification", "host", "started_at"), _text),
    "detected": _texts,
    **dict.fromkeys(("supervisor", "pid"), _count),
    "ready": _flag,
    "verdict": _verdict,
    "signals": _signals,
    **dict.fromkeys(("backend", "device", "driver"), _text_or_none),
    **dict.fromkeys(("port", "memory_total", "memory_used"), _count_or_none),
    **dict.fromkeys(("layers_offloaded", "layers_total"), _count_or_none),
    "fallen_back_from": _fallen_back,
}
