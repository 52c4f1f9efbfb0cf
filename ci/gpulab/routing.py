"""Every model behind one address: what ``status`` says of the loaded ones, beside the driver.

NVIDIA's program knows which process has how much memory of which card.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ci.gpulab.machine import Machine
from ci.gpulab.model import write_model
from ci.gpulab.steps import free_port

_MODELS: Mapping[str, Mapping[str, int]] = {
    "first": {"layers": 20, "width": 2048, "inner": 5632},
    "second": {"layers": 24, "width": 2048, "inner": 5632},
    "third": {"layers": 16, "width": 4096, "inner": 14336},
}
_CLOSE = 0.05
"""Part by which two counts of a server's GPU memory may differ: it may still grow."""

_PATIENCE = 180.0


def show_all_models(machine: Machine) -> Mapping[str, object]:
    """Serve three models behind one address; ask each, one after the other and all at once.

    Each must be loaded, judged to be on the GPU, and have the memory there that the driver counts.
    After ``stop`` none of their processes is left on a card.
    """
    folder = machine.folder / "shelf"
    folder.mkdir(exist_ok=True)
    for name, sizes in _MODELS.items():
        if not (folder / f"{name}.gguf").exists():
            write_model(folder / f"{name}.gguf", **sizes)
    port = str(free_port())
    # Only these models: the machine may have others.
    env = {**machine.env, "TSUKU_LLM_MODEL_PATH": str(folder), "HOME": str(machine.folder)}
    started = machine.program(
        *("serve", "--detach", "--json", "--", "--port", port, "-c", "2048"), env=env
    )
    document: dict[str, object] = {"start": started.told, "said": started.stderr[-2000:]}
    if started.code:
        return {"shown": False, **document}
    try:
        one_by_one = {name: _ask(port, name) for name in _MODELS}
        with ThreadPoolExecutor(len(_MODELS)) as pool:
            asked = {name: pool.submit(_ask, port, name) for name in _MODELS}
            at_once = {name: each.result() for name, each in asked.items()}
        status = machine.program("status", "--json", env=env)
        taken = _taken()
    finally:
        stopped = machine.program("stop", "--json", env=env)
    models: list[Mapping[str, Any]] = [
        each for loaded in status.data.get("models", {}).values() for each in loaded
    ]
    rows = [{**each, "driver": taken.get(each["pid"], {})} for each in models]
    left = [each["pid"] for each in models if Path("/proc", str(each["pid"])).exists()]
    shown = {each["name"] for each in models} == set(_MODELS) and not left and stopped.code == 0
    shown &= all(_is_right(row) for row in rows)
    shown &= not any(each["error"] for each in (*one_by_one.values(), *at_once.values()))
    return {
        "shown": shown,
        **document,
        "one after the other": one_by_one,
        "at once": at_once,
        "loaded": rows,
        "left": left,
    }


def _is_right(row: Mapping[str, Any]) -> bool:
    counted = sum(row["driver"].values())
    said = row["gpu_memory"]
    close = said is not None and abs(said - counted) <= _CLOSE * counted
    return row["verdict"] == "on_gpu" and counted > 0 and close


def _ask(port: str, model: str) -> Mapping[str, object]:
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    began, error = time.monotonic(), None
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
            answer.read()
    except OSError as exc:
        error = repr(exc)
    return {"seconds": round(time.monotonic() - began, 2), "error": error}


def _taken() -> dict[int, dict[str, int]]:
    """Return the bytes that each process has of each card, by the card's UUID."""
    asked = "--query-compute-apps=pid,gpu_uuid,used_memory"
    said = subprocess.run(
        ["nvidia-smi", asked, "--format=csv,noheader,nounits"],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[int, dict[str, int]] = {}
    for line in said.stdout.splitlines():
        pid, uuid, used = (each.strip() for each in line.split(","))
        if used.isdigit():
            found.setdefault(int(pid), {})[uuid] = int(used) << 20
    return found
