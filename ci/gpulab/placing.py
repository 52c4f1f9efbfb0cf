"""The speed of a model where ``llm.placement`` puts it, beside every placement by hand."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ci.gpulab.machine import Machine
from ci.gpulab.model import write_model
from ci.gpulab.steps import Server, running

_SMALL = {"layers": 40, "width": 2048, "inner": 5632}
"""2.1 GB."""

_LARGE = {"layers": 42, "width": 8192, "inner": 28672}
"""44 GB."""

_FILLED, _HALF = 1_200_000_000, 32_000_000_000
"""Bytes that others leave free: of a GPU that they fill, and of each if the model needs both."""

_REACH = 0.95
_ROUNDS, _STARTS = 3, 3
_PROMPT = "hello " * 250
"""2,000 tokens of a model whose tokens are letters."""


def place(machine: Machine, models: str) -> Mapping[str, Mapping[str, object]]:
    """Measure the ``small`` model, the ``large`` one, or ``both``.

    The GPUs are free, then others fill the first one, or leave too little on each for the model.
    """
    found: dict[str, Mapping[str, object]] = {}
    if models in ("small", "both"):
        small = write_model(machine.folder / "small.gguf", **_SMALL)
        names = _devices(machine, small)
        found["small"] = _compare(machine, small, names)
        if len(names) > 1:
            with _held([_FILLED]):
                found["small, the first GPU filled"] = _compare(machine, small, names[1:])
    if models in ("large", "both"):
        large = write_model(machine.folder / "large.gguf", **_LARGE)
        names = _devices(machine, large)
        found["large"] = _compare(machine, large, names)
        if len(names) > 1:
            with _held([_HALF] * len(names)):
                found["large, too little on each"] = _compare(machine, large, [",".join(names)])
    return {f"placed: {name}": step for name, step in found.items()}


def _devices(machine: Machine, model: Path) -> Sequence[str]:
    env = {**machine.env, "TSUKU_LLM_PLACEMENT": "all"}
    done = machine.program("serve", "--dry-run", "--json", "--", "-m", str(model), env=env)
    names: Sequence[str] = (done.data.get("placement") or {}).get("devices") or ()
    return names


def _compare(machine: Machine, model: Path, by_hand: Sequence[str]) -> Mapping[str, object]:
    """Measure ``auto``, ``all``, and each value of ``--device``; auto must be as fast as the best.

    Each way is started several times, in turns, and the medians count: the speed of a start differs
    by some percent. ``all`` may fail where a GPU is filled.
    """
    everywhere = {"TSUKU_LLM_PLACEMENT": "all"}
    ways: dict[str, list[Mapping[str, Any]]] = {}
    for _ in range(_STARTS):
        ways.setdefault("auto", []).append(_measure(machine, model))
        ways.setdefault("all", []).append(_measure(machine, model, env=everywhere))
        for value in by_hand:
            ways.setdefault(value, []).append(_measure(machine, model, "--device", value))
    rates = {
        way: statistics.median(each["generation"] for each in starts)
        for way, starts in ways.items()
    }
    best = max((rates[value] for value in by_hand), default=0.0)
    return {"shown": 0 < best * _REACH <= rates["auto"], "generation": rates, "starts": ways}


def _measure(
    machine: Machine, model: Path, *more: str, env: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Start a server and ask it; return tokens per second, and the seconds of two prompts."""
    with running(machine, model, "-c", "4096", *more, env=env) as server:
        ready = server.wait()
        # The second prompt differs: the server keeps the state of the first one.
        prompts = [_complete(server, f"{n} {_PROMPT}", 1) for n in range(2)] if ready else []
        answers = [_complete(server, f"{n} hello", 128) for n in range(_ROUNDS)] if ready else []
    timings = [each["timings"] for each in answers if "timings" in each]
    rates = [each["predicted_n"] / each["predicted_ms"] * 1000 for each in timings]
    return {
        "generation": round(statistics.median(rates), 1) if rates else 0.0,
        "prompts, s": [each.get("seconds") for each in prompts],
        "placement": server.start.get("placement"),
        "gpu_names": server.start.get("gpu_names"),
        "exit_code": server.code,
        "stderr": server.stderr[-1000:] if server.code else "",
    }


def _complete(server: Server, prompt: str, tokens: int) -> Mapping[str, Any]:
    return server.ask(prompt=prompt, n_predict=tokens, ignore_eos=True)


@contextmanager
def _held(left: Sequence[int]) -> Iterator[None]:
    """Let a process for each of the first GPUs hold all of its memory but so many bytes."""
    with ExitStack() as stack:
        for device, free in enumerate(left):
            line = [
                sys.executable,
                str(Path(__file__).with_name("hold.py")),
                str(device),
                str(free),
            ]
            pipe = subprocess.PIPE
            holder = stack.enter_context(subprocess.Popen(line, stdin=pipe, stdout=pipe))
            # Leaving the context closes its stdin, which ends it.
            if not (holder.stdout and holder.stdout.readline()):
                raise RuntimeError(f"the memory of GPU {device} cannot be held")
        yield
