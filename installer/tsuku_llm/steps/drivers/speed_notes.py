"""Notes for an unattended update: what ``bench`` measured last, and the model that was served last.

Both may be lost: then less can be demanded of a new build, or nothing can be started to try it. A
file that cannot be read, or that another user owns, counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import make_folder, read_small, write_note

_SPEEDS = "speeds.json"
_SERVED = "served.json"
_FORMAT = 1
_LIMIT = 1 << 18
_MOST = 32
"""Models whose speeds are kept."""


class MeasuredModel(NamedTuple):
    """The last benchmark of one model: ``speeds`` has the tokens per second of each backend.

    ``size`` is the file's, in bytes: another file of this name has not been measured.
    """

    model: str
    size: int
    speeds: Mapping[str, float]


_READ_SPEEDS = records.fields(
    {
        "models": records.many(
            records.record(
                MeasuredModel,
                {
                    "model": records.text,
                    "size": records.count,
                    "speeds": records.named(records.number),
                },
            )
        )
    },
    format=_FORMAT,
)
_READ_SERVED = records.fields({"arguments": records.many(records.text)}, format=_FORMAT)


def keep_speeds(state: Path, model: Path, speeds: Mapping[str, float]) -> None:
    """Note what a benchmark of this model measured, with the speeds of other backends before."""
    with suppress(OSError, StoreError):
        path, size = str(model.resolve()), model.stat().st_size
        others = [each for each in _measured(state) if each.model != path]
        before = _of(state, path, size)
        measured = MeasuredModel(path, size, {**before, **speeds})
        _write(state / _SPEEDS, {"models": [*others, measured][-_MOST:]})


def last_speed(state: Path, model: Path | None, backend: str) -> float | None:
    """Return what the last benchmark of this model and backend measured, None without one."""
    if model is None:
        return None
    with suppress(OSError):
        return _of(state, str(model.resolve()), model.stat().st_size).get(backend)
    return None


def keep_served(state: Path, arguments: Sequence[str]) -> None:
    """Note the arguments that name the model which a server serves now; none: keep the last."""
    if arguments and tuple(arguments) != last_served(state):
        with suppress(OSError, StoreError):
            _write(state / _SERVED, {"arguments": list(arguments)})


def last_served(state: Path) -> tuple[str, ...]:
    """Return the arguments for the model that was served last; none if that is not known.

    They are ``-m`` and a path, or ``-hf`` and a name.
    """
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(state / _SERVED, _LIMIT) or b"null", _READ_SERVED)
        arguments: tuple[str, ...] = found["arguments"]
        return arguments if len(arguments) > 1 else ()
    return ()


def _of(state: Path, path: str, size: int) -> Mapping[str, float]:
    found = (each for each in _measured(state) if (each.model, each.size) == (path, size))
    return next((each.speeds for each in found), {})


def _measured(state: Path) -> tuple[MeasuredModel, ...]:
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(state / _SPEEDS, _LIMIT) or b"null", _READ_SPEEDS)
        models: tuple[MeasuredModel, ...] = found["models"]
        return models
    return ()


def _write(path: Path, document: Mapping[str, object]) -> None:
    make_folder(path.parent)
    write_note(path, records.encode({"format": _FORMAT, **document}))
