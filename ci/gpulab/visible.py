"""Cards that were not given are not used, through whichever interface a server reaches them.

Which card a server uses is read off the memory that its model takes there. What a variable leaves
to CUDA and to a Vulkan build, these say themselves: the driver, and the build's own list.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci.gpulab.machine import Machine
from ci.gpulab.steps import free_port

_LEAST = 500_000_000
"""Bytes: the model takes more, and a server without a model on the card less."""


_CUDA = """
import ctypes, json
cuda, count, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for index in range(count.value):
    device, uuid = ctypes.c_int(), (ctypes.c_char * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    found.append(bytes(uuid).hex())
print(json.dumps([code, found]))
"""
"""What the driver gives a program: the code of the first call that fails, and the cards' UUIDs."""

_NUMBERS = ("0", "1", "0,1", "1,0", "0,7,1", "7", "-1", "", "x", "0,x", "0x1", "+1", " 1")
# A Vulkan build lists a card twice that is given twice.
_VALUES: Mapping[str, tuple[str, ...]] = {
    "CUDA_VISIBLE_DEVICES": (*_NUMBERS, "0,0", "none", "NoDevFiles", "GPU-", "1e0", "0;1"),
    "GGML_VK_VISIBLE_DEVICES": (*_NUMBERS, ",0", "0 1", "0;1"),
    "CUDA_DEVICE_ORDER": ("PCI_BUS_ID", "FASTEST_FIRST", "pci_bus_id", ""),
    "VK_DRIVER_FILES": ("", ":", "/nowhere.json"),
    "VK_LOADER_DRIVERS_DISABLE": ("*", "~all~", "*nvidia*", "lvp*"),
}


def show_variables(machine: Machine) -> Mapping[str, object]:
    """Compare what the probe says under each value with what the driver and the build list."""
    rows = list(_compared(machine))
    return {"shown": all(row["shown"] for row in rows), "rows": rows}


def _compared(machine: Machine) -> Iterator[dict[str, object]]:
    server = machine.program("which", "--json").data["path"]
    for name, value in [(name, value) for name, values in _VALUES.items() for value in values]:
        env = {**machine.env, name: value}
        code, cards = json.loads(_said([sys.executable, "-c", _CUDA], env))
        listed = _said([server, "--list-devices"], env).count("  Vulkan")
        hardware = machine.program("probe", "--json", env=env).data["hardware"]
        cuda, vulkan = (
            next(each for each in hardware["apis"] if each["name"] == api)
            for api in ("cuda", "vulkan")
        )
        left = [each for each in vulkan["gpus"] if not each["hidden_by"]]
        # A start passes on what CUDA's variable leaves out; the build alone does not read it.
        same = len(left) == (len(cards) if name == "CUDA_VISIBLE_DEVICES" else listed)
        told = [api["problem"]["text"] for api in (cuda, vulkan) if api["problem"]]
        named = all(name in text for text in told)
        yield {
            "variable": f"{name}={value!r}",
            "shown": same and named and [each["uuid"] for each in cuda["gpus"]] == cards,
            "cuda": [code, len(cards)],
            "vulkan": [listed, len(left)],
            "told": told,
        }


def _said(words: list[str], env: Mapping[str, str]) -> str:
    return subprocess.run(words, env=dict(env), capture_output=True, text=True, check=False).stdout


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
