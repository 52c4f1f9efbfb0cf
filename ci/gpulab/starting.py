"""Seconds of a start: ours beside the same build's server by hand, in turns.

Ours is ready when ``/health`` of the server says so, as by hand; with ``--detach``, when the
command returns. All see the first card alone and have the same arguments. The models' files are
warm.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ci.gpulab.machine import Machine
from ci.gpulab.model import write_model
from ci.gpulab.steps import ask, free_port, is_healthy

_MODELS: Mapping[str, tuple[Mapping[str, int], Sequence[str]]] = {
    "tiny": ({"layers": 1, "width": 128, "inner": 256}, ()),
    "1.1 GB": ({"layers": 20, "width": 2048, "inner": 5632}, ()),
    "7 GB": ({"layers": 32, "width": 4096, "inner": 14336}, ()),
    "7 GB, half on the processor": ({"layers": 32, "width": 4096, "inner": 14336}, ("-ngl", "16")),
}
_PAIRS = 5
_BOUND = 0.3
"""Seconds by which our start may exceed that of the server alone."""

_CARD = {"CUDA_VISIBLE_DEVICES": "0", "GGML_VK_VISIBLE_DEVICES": "0"}
_PATIENCE = 120.0


def show_starts(machine: Machine) -> Mapping[str, object]:
    """Start the active build with each model in three ways; the medians must be close."""
    path = str(machine.program("which", "--json").data["path"])
    rows: dict[str, Mapping[str, object]] = {}
    for name, (sizes, more) in _MODELS.items():
        model = machine.folder / f"starts-{'-'.join(map(str, sizes.values()))}.gguf"
        if not model.exists():
            write_model(model, **sizes)
        words = ("-m", str(model), "-c", "4096", *more)
        with _in_the_background(machine, words):
            pass  # what a driver compiles once is compiled now
        turns: list[Mapping[str, Mapping[str, float]]] = []
        for turn in range(_PAIRS):
            ways = {
                "ours": _until_healthy(machine, (str(machine.command), "serve", "--"), words),
                "in the background": _in_the_background(machine, words),
                "by hand": _until_healthy(machine, (path,), words),
            }
            found: dict[str, Mapping[str, float]] = {}
            for each in ways if turn % 2 else reversed(ways):
                with ways[each] as times:
                    found[each] = times
            turns.append(found)
        medians = {way: _medians([turn[way] for turn in turns]) for way in turns[0]}
        rows[name] = {**medians, "all": turns}
    late = {
        name: round(row["ours"]["ready"] - row["by hand"]["ready"], 2)  # type: ignore[index]
        for name, row in rows.items()
    }
    return {"shown": all(each <= _BOUND for each in late.values()), "later": late, "rows": rows}


def _medians(starts: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {key: round(statistics.median(each[key] for each in starts), 3) for key in starts[0]}


@contextmanager
def _in_the_background(machine: Machine, words: Sequence[str]) -> Iterator[Mapping[str, float]]:
    port = free_port()
    began = time.monotonic()
    env = {**machine.env, **_CARD}
    done = machine.program(
        *("serve", "--detach", "--json", "--", *words, "--port", str(port)), env=env
    )
    ready = time.monotonic() - began
    if done.code:
        raise RuntimeError(str(done.told))
    try:
        yield {"ready": ready, **_prompts(port)}
    finally:
        machine.program("stop", "--json")


@contextmanager
def _until_healthy(
    machine: Machine, command: Sequence[str], words: Sequence[str]
) -> Iterator[Mapping[str, float]]:
    port = free_port()
    began = time.monotonic()
    with (machine.folder / "start.log").open("wb") as log:
        child = subprocess.Popen(
            [*command, *words, "--port", str(port)],
            env={**machine.env, **_CARD},
            stdout=log,
            stderr=log,
        )
    try:
        while not is_healthy(port):
            if child.poll() is not None or time.monotonic() > began + _PATIENCE:
                raise RuntimeError((machine.folder / "start.log").read_text("utf-8", "replace"))
            time.sleep(0.01)
        yield {"ready": time.monotonic() - began, **_prompts(port)}
    finally:
        child.terminate()
        child.wait()


def _prompts(port: int) -> Mapping[str, float]:
    """Return the seconds of the first prompt of 64 tokens, and of another one."""
    asked = [[259 + (number * number + turn) % 26 for number in range(64)] for turn in range(2)]
    times = [
        ask(port, prompt=prompt, n_predict=1, cache_prompt=False)["seconds"] for prompt in asked
    ]
    return dict(zip(("first prompt", "second prompt"), times, strict=True))
