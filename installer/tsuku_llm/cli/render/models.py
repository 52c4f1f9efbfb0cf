"""The models of this machine, for programs and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsuku_llm.cli.terminal.style import columns
from tsuku_llm.cli.terminal.text import size, table
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.steps.report.explain import ModelList, ModelRow

_NAMES = 30
"""Characters of the column of names, so that a row has at most 80; a longer name has own line."""

_SOURCES = {"huggingface": "Hugging Face", "lm-studio": "LM Studio", "ollama": "Ollama"}
_HEAD = ("name", "size", "quant", "context", "from", "fits")


def lines(listed: ModelList) -> tuple[str, ...]:
    """Return the models as a table of at most 80 columns, and what was left out."""
    if not listed.models:
        looked = (f"  {place.folder}" for place in listed.found.places)
        left_out = (f"note: {note}" for note in listed.found.notes)
        return ("no model was found in:", *looked, *left_out, *listed.ways)
    rows = [_HEAD, *(_row(row) for row in listed.models)]
    short = [row if columns(row[0]) <= _NAMES else ("", *row[1:]) for row in rows]
    shown: list[str] = []
    for row, line in zip(listed.models, table(short, indent=0)[1:], strict=True):
        if columns(row.model.name) > _NAMES:
            shown.append(row.model.name)
        shown.append(line)
        if row.model.projector:
            file = row.model.projector.replace("\\", "/").rpartition("/")[2]
            shown.append(f"  with the projector {file}")
    shortened = any(row.fit and row.fit.shortened for row in listed.models)
    notes = [*listed.found.notes]
    notes += [f"{row.model.name}: {row.problem}" for row in listed.models if row.problem]
    return (
        table(short, indent=0)[0],
        *shown,
        *(
            ("-c N: it fits with this context, to which the server shortens it",)
            if shortened
            else ()
        ),
        *((f"whether they fit is not known: {listed.problem}",) if listed.problem else ()),
        *(f"note: {note}" for note in notes),
        f"serve one: {TSUKU} serve -m NAME",
    )


def _row(row: ModelRow) -> tuple[str, ...]:
    model = row.model
    return (
        model.name,
        size(model.size),
        model.quantisation or "?",
        str(model.context or "?"),
        _SOURCES.get(model.source, model.source),
        _fits(row),
    )


def _fits(row: ModelRow) -> str:
    fit = row.fit
    if fit is None or fit.fits is None:
        return "?"
    if fit.shortened:
        return f"-c {fit.shortened}"
    if fit.fits:
        return "yes"
    return "partly" if fit.on_devices and not fit.missing else "no"
