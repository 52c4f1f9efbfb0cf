"""The matrix: every variant of a release against the machine, and which of them are installed."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render import choice as render
from tsuku_llm.cli.render.text import named, size, table
from tsuku_llm.operations.explain import Matrix
from tsuku_llm.store.installed import Installed


def data(matrix: Matrix) -> dict[str, Any]:
    """Return the matrix for programs: the answer of ``explain``, and two more facts per variant."""
    states = map(matrix.state, matrix.choice.selection.variants)
    told = render.data(matrix.choice)
    rows = [
        {**row, "installed": state is not None, "active": state == "active"}
        # ``explain`` lists the variants in the same order as ``selection.variants``.
        for row, state in zip(told["variants"], states, strict=True)
    ]
    return {**told, "variants": rows, "active": _active(matrix.active)}


def _active(active: Installed | None) -> dict[str, str] | None:
    if active is None:
        return None
    receipt = active.receipt
    return {"id": active.id, "variant": receipt.variant, "release": receipt.release}


def lines(matrix: Matrix) -> tuple[str, ...]:
    """Return the matrix for people."""
    selection = matrix.choice.selection
    verdicts = [
        *(render.verdict(each) for each in selection.compatible),
        *(each.reason.text for each in selection.rejected),
    ]
    rows = [
        (v.name, v.backend, size(v.download_size), matrix.state(v) or "", verdict)
        for v, verdict in zip(selection.variants, verdicts, strict=True)
    ]
    head = ("variant", "backend", "download", "state", "")
    return (
        *render.title(matrix.choice),
        render.decision(matrix.choice),
        *table([head, *rows]),
        *_other_active(matrix),
    )


def _other_active(matrix: Matrix) -> tuple[str, ...]:
    """Return a line for the active version, if it is not one of the rows."""
    active = matrix.active
    if active is None or "active" in map(matrix.state, matrix.choice.selection.variants):
        return ()
    receipt = active.receipt
    return (f"active: {receipt.variant} of {named(receipt.release, receipt.version)}",)
