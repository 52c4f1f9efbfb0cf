"""Notes about models: what ``bench`` measured last, what they answered, which was served last.

All may be lost: then less can be demanded of a new build, or nothing can be started to try it. A
file that cannot be read, or that another user owns, counts as missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import make_folder, read_small, write_note
from tsuku_llm.launch.compute.canary_answer import Answer, AnswerStep, KnownAnswers
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.wishes import ELSEWHERE, wishes_in, without_options

_SPEEDS = "speeds.json"
_SERVED = "served.json"
_FORMAT = 1
_LIMIT = 1 << 18
_MOST = 32
"""Models of which something is kept."""
_MOST_ANSWERS = 4

# Where a server listens, and on which devices it computes, changes nothing of what a model means.
_PASSING = {*ELSEWHERE, "--device", "--tensor-split", "-devd"}


class GivenAnswer(NamedTuple):
    """The first answer of a build, by its version's id, to the canary.

    ``arguments`` is a digest of the server's arguments, without those that change no answer.
    """

    build: str
    arguments: str
    steps: Answer


class MeasuredModel(NamedTuple):
    """The last benchmark of one model: ``speeds`` has the tokens per second of each backend.

    ``size`` is the file's, in bytes: another file of this name has not been measured. ``answers``
    are those of the last builds.
    """

    model: str
    size: int
    speeds: Mapping[str, float] = {}
    answers: tuple[GivenAnswer, ...] = ()


_GIVEN = records.record(
    GivenAnswer,
    {"arguments": records.digest, "steps": records.many(records.record(AnswerStep))},
)
_MEASURED = records.record(MeasuredModel, {"answers": records.many(_GIVEN)})
_READ_SPEEDS = records.fields({"models": records.many(_MEASURED)}, format=_FORMAT)
_READ_SERVED = records.fields({"arguments": records.many(records.text)}, format=_FORMAT)


def keep_speeds(state: Path, model: Path, speeds: Mapping[str, float]) -> None:
    """Note what a benchmark of this model measured, with the speeds of other backends before."""
    with suppress(OSError, StoreError):
        before = _of(state, model)
        _keep(state, before._replace(speeds={**before.speeds, **speeds}))


def last_speed(state: Path, model: Path | None, backend: str) -> float | None:
    """Return what the last benchmark of this model and backend measured, None without one."""
    if model is None:
        return None
    with suppress(OSError):
        return _of(state, model).speeds.get(backend)
    return None


class AnswerNotes:
    """The notes about what one model answers with these arguments, for a start of one build.

    Make it in the user's folder: the process leaves it later.
    """

    def __init__(self, state: Path, plan: LaunchPlan, build: str) -> None:
        self._state = state
        self._build = build
        # A model that the server fetches has no path that is known here.
        model = wishes_in(plan.argv, plan.env).model
        self._model = Path(os.path.abspath(model)) if model else None
        words = list(without_options(plan.argv[1:], _PASSING))
        words += sorted(
            f"{name}={value}"
            for name, value in plan.env.items()
            if name.startswith("LLAMA_ARG_") and not name.endswith(("_HOST", "_PORT", "_DEVICE"))
        )
        self._arguments = hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()

    def known(self) -> KnownAnswers:
        """Return what this build and the last other one answered."""
        with suppress(OSError):
            if self._model:
                found = _of(self._state, self._model).answers
                same = [each for each in found if each.arguments == self._arguments]
                own = next((each.steps for each in same if each.build == self._build), ())
                others = [each for each in same if each.build != self._build]
                other = others[-1] if others else GivenAnswer("", "", ())
                return KnownAnswers(own, other.steps, other.build)
        return KnownAnswers()

    def keep(self, answer: Answer) -> None:
        """Keep the first answer of this build."""
        with suppress(OSError, StoreError):
            if self._model:
                before = _of(self._state, self._model)
                given = GivenAnswer(self._build, self._arguments, answer)
                answers = [each for each in before.answers if each[:2] != given[:2]]
                kept = (*answers, given)[-_MOST_ANSWERS:]
                _keep(self._state, before._replace(answers=kept))


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


def _of(state: Path, model: Path) -> MeasuredModel:
    """Return what is known of a model's file. Raises OSError."""
    path, size = str(model.resolve()), model.stat().st_size
    found = (each for each in _measured(state) if (each.model, each.size) == (path, size))
    return next(found, MeasuredModel(path, size))


def _keep(state: Path, model: MeasuredModel) -> None:
    others = [each for each in _measured(state) if each.model != model.model]
    _write(state / _SPEEDS, {"models": [*others, model][-_MOST:]})


def _measured(state: Path) -> tuple[MeasuredModel, ...]:
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(state / _SPEEDS, _LIMIT) or b"null", _READ_SPEEDS)
        models: tuple[MeasuredModel, ...] = found["models"]
        return models
    return ()


def _write(path: Path, document: Mapping[str, object]) -> None:
    make_folder(path.parent)
    write_note(path, records.encode({"format": _FORMAT, **document}))
