"""What ``serve`` and ``run`` would start."""

from __future__ import annotations

import shlex
from typing import Any

from tsuku_llm.operations.tools import Planned


def data(plan: Planned) -> dict[str, Any]:
    """Return the plan for programs."""
    return {
        "version": plan.version,
        "argv": plan.argv,
        "cwd": plan.cwd,
        "environment": plan.env,
        "removed": plan.removed,
    }


def lines(plan: Planned) -> tuple[str, ...]:
    """Return the plan for people: the line of the decision, the variables that count, the words."""
    return (
        plan.line,
        f"in {plan.cwd}",
        *(f"with {name}={value}" for name, value in plan.env.items()),
        *(f"without {name}" for name in plan.removed),
        f"would run: {shlex.join(plan.argv)}",
    )
