"""Cards that were not given are not used, through whichever interface a server reaches them.

Which card a server uses is read off the memory that its model takes there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from ci.gpulab.machine import Machine
from ci.gpulab.steps import free_port

_LEAST = 500_000_000
"""Bytes: the model takes more, and a server without a model on the card less."""


def show_visible(machine: Machine, model: Path) -> Mapping[str, object]:
    """Start the active build under each variable; note the cards that it uses and those given."""
    cards = list(_taken())
    cases: list[tuple[dict[str, str], list[int] | None]] = [
        ({"CUDA_VISIBLE_DEVICES": str(index)}, [index]) for index in range(len(cards))
    ]
    cases += [({"CUDA_VISIBLE_DEVICES": uuid}, [index]) for index, uuid in enumerate(cards)]
    cases += [({"CUDA_VISIBLE_DEVICES": ""}, [])]
    # Vulkan may count the cards in another order: one of them, whichever it is.
    cases += [({"GGML_VK_VISIBLE_DEVICES": str(index)}, None) for index in range(len(cards))]
    rows = []
    for variables, right in cases:
        used, told = _used(machine, model, variables)
        named = [cards.index(uuid) for uuid in used]
        shown = len(named) == 1 if right is None else named == right
        rows.append(
            {"variables": variables, "cards": named, "right": right, "shown": shown, **told}
        )
    return {"shown": all(row["shown"] for row in rows), "cards": cards, "rows": rows}


def _used(
    machine: Machine, model: Path, variables: Mapping[str, str]
) -> tuple[list[str], Mapping[str, object]]:
    before = _taken()
    words = ("-m", str(model), "-c", "2048", "--port", str(free_port()))
    done = machine.program(
        *("serve", "--detach", "--json", "--", *words), env={**machine.env, **variables}
    )
    after = _taken()
    machine.program("stop", "--json")
    return [uuid for uuid in after if after[uuid] - before[uuid] > _LEAST], done.told


def _taken() -> dict[str, int]:
    """Return the bytes in use of each card, by UUID, in the order of CUDA by PCI address."""
    asked = ["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    pairs = (line.split(",") for line in lines)
    return {uuid.strip(): int(used) * (1 << 20) for uuid, used in pairs}
