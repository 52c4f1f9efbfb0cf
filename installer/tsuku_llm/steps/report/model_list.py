"""The models that are on this machine already, and whether each fits.

Apart from ``models``, which every start needs: this asks for all that ``explain`` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.memory.fit import Fit
from tsuku_llm.model_caches.finding import FoundModels, local_models
from tsuku_llm.model_caches.naming import LocalModel
from tsuku_llm.steps.report.explain import explain, memory_judge
from tsuku_llm.steps.report.models import ways_to_a_model
from tsuku_llm.steps.session import Session


@documented("*model", "fit", "problem")
@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model, and whether it fits; ``problem`` is why that is not known."""

    model: LocalModel
    fit: Fit | None = None
    problem: str | None = None


@documented("models", "*found", "problem")
@dataclass(frozen=True, slots=True)
class ModelList:
    """The models of this machine; ``problem`` is why it is not known whether they fit.

    ``ways`` says how to get a model, if there is none.
    """

    found: FoundModels
    models: tuple[ModelRow, ...]
    problem: str | None = None
    ways: tuple[str, ...] = ()


def list_models(session: Session) -> ModelList:
    """List the models, each with the judgement of ``explain -m`` for a start without arguments."""
    found = local_models(session.machine.environ, session.settings.model_path)
    if not found.models:
        return ModelList(found, (), ways=ways_to_a_model(session.reader))

    try:
        judge = memory_judge(session, explain(session))
    except TsukuError as error:
        return ModelList(found, tuple(map(ModelRow, found.models)), error.message)
    return ModelList(found, tuple(_row(model, judge) for model in found.models))


def _row(model: LocalModel, judge: Callable[[str, str | None], Fit]) -> ModelRow:
    try:
        return ModelRow(model, judge(model.path, model.projector))
    except OSError as error:
        return ModelRow(model, problem=f"it cannot be read: {error.strerror or error}")
    except ValueError as error:
        return ModelRow(model, problem=f"it is no complete GGUF file: {error}")
