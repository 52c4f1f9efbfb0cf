"""The steps: a refusal, a server on the GPU, and the comparison."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.gpulab.machine import Machine

_PATIENCE = 180.0
"""Seconds until a server is ready: it may compile shaders first."""

_NOT_THERE = "/nonexistent/icd.json"


def refuse(machine: Machine, model: Path) -> Mapping[str, object]:
    """Show that a start that requires a GPU ends with 8 and says why, if Vulkan finds no driver.

    If this machine has all libraries that its driver needs, the driver is hidden instead.
    """
    words = ("serve", "--require-gpu", "--json", "--", "-m", str(model), "--version")
    done = machine.program(*words, env=machine.bare)
    hidden = done.code != 8  # noqa: PLR2004
    if hidden:
        done = machine.program(*words, env={**machine.bare, "VK_DRIVER_FILES": _NOT_THERE})
    error = done.document.get("error") or {}
    named = isinstance(error, dict) and bool(error.get("facts"))
    return {"shown": done.code == 8 and named, "driver hidden": hidden, **done.told}  # noqa: PLR2004


def serve(
    machine: Machine,
    model: Path,
    *more: str,
    verdict: str = "on_gpu",
    env: Mapping[str, str] | None = None,
) -> Mapping[str, object]:
    """Start a server that requires the GPU, ask it for a completion, stop it; return its report.

    ``verdict`` is the one that the report must have. ``env`` is added to the environment.
    """
    began = time.monotonic()
    with running(machine, model, *more, env=env, options=("--require-gpu",)) as (
        end,
        port,
        healthy,
    ):
        ready = time.monotonic() - began
        answer = complete(port, "hello " * 200, 64) if healthy else {}
        time.sleep(2.0 if healthy else 0.0)  # the verdict follows the first good answer
    return {
        "shown": end.start.get("verdict") == verdict and end.code == 0,
        "exit_code": end.code,
        "seconds until /health": round(ready, 2),
        "timings": answer.get("timings") or answer.get("error"),
        "start": end.start,
        "stderr": end.stderr[-3000:] if end.code else "",
    }


@dataclass
class End:
    """How a server ended, known after ``running``; ``start`` is the launcher's report."""

    code: int | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""


@contextmanager
def running(
    machine: Machine,
    model: Path,
    *more: str,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[tuple[End, int, bool]]:
    """Start a server; give its end to be, its port, and whether it is ready; stop it at the end."""
    port = _free_port()
    words = ("serve", *options, "--json", "--", "-m", str(model), "--port", str(port), *more)
    child = subprocess.Popen(
        [machine.command, *words],
        env={**machine.env, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = End()
    try:
        yield end, port, _waits_for(child, port)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            stdout, end.stderr = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # a server that is still loading does not handle signals
            child.kill()
            stdout, end.stderr = child.communicate()
        end.code = child.returncode
        end.start = json.loads(stdout or "{}").get("data", {}).get("start") or {}


def refuse_a_part(machine: Machine, model: Path) -> Mapping[str, object]:
    """Show that a server with a small part of its model on the GPU ends with 8, if more is asked.

    The same server passes if the user asks for that part only.
    """
    port = str(_free_port())
    words = ("serve", "--require-gpu", "--min-gpu-share", "90 %", "--json", "--")
    done = machine.program(*words, "-m", str(model), "--port", port, "-ngl", "5")
    error = done.document.get("error") or {}
    named = isinstance(error, dict) and error.get("code") == "not-on-gpu"
    return {"shown": done.code == 8 and named, **done.told}  # noqa: PLR2004


def compare(machine: Machine, model: Path) -> Mapping[str, object]:
    """Measure tokens per second of each installed variant."""
    done = machine.program("bench", "-m", str(model), "--yes", "--json")
    measured = {each["variant"] for each in done.data.get("results", ())}
    shown = done.code == 0 and measured >= {"cpu", "vulkan"}
    return {"shown": shown, **done.told, "bench": done.data}


def _waits_for(child: subprocess.Popen[str], port: int) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while child.poll() is None and time.monotonic() < deadline:
        if _is_healthy(port):
            return True
        time.sleep(0.05)
    return False


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except OSError:
        return False


def complete(port: int, prompt: str, tokens: int) -> Mapping[str, Any]:
    """Ask for a completion; return the server's answer with its ``seconds``."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps({"prompt": prompt, "n_predict": tokens, "ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read())
    except OSError as error:  # the server crashed: its stderr is in the report
        return {"error": repr(error)}
    return {**found, "seconds": round(time.monotonic() - began, 3)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # The system picks a free port; closing the socket frees it for the server.
        return int(listening.getsockname()[1])
