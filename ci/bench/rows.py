"""What is measured, against what, and the ratio to reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.bench.pairs import Command, Samples

PROGRAM = (str(Path(sys.executable).with_name("tsuku-llm")),)
INTERPRETER = (sys.executable, "-I", "-c", "pass")


@dataclass(frozen=True)
class Row:
    """``ratio`` makes one figure of the samples; at most ``reach`` is the aim."""

    id: str
    what: str
    yardstick: str
    commands: Mapping[str, Command]
    reach: float
    ratio: Callable[[Samples], float]


def of_yardstick(samples: Samples) -> float:
    """Our time as a multiple of the yardstick's."""
    return samples.median("ours") / samples.median("yardstick")


def beyond_the_interpreter(samples: Samples) -> float:
    """The same without the interpreter's own start, which the yardstick does not have."""
    ours = samples.median("ours") - samples.median("interpreter")
    return ours / samples.median("yardstick")


ROWS = (
    Row(
        "G1",
        "--version",
        "python -I -c pass",
        {"ours": (*PROGRAM, "--version"), "yardstick": INTERPRETER},
        2.0,
        of_yardstick,
    ),
    Row(
        "G2",
        "--help",
        "python -I -c pass",
        {"ours": (*PROGRAM, "--help"), "yardstick": INTERPRETER},
        5.0,
        of_yardstick,
    ),
    Row(
        "G15",
        "probe, every API, in children",
        "vulkaninfo --summary",
        {
            "ours": (*PROGRAM, "probe"),
            "yardstick": ("vulkaninfo", "--summary"),
            "interpreter": INTERPRETER,
        },
        2.0,
        beyond_the_interpreter,
    ),
)
