"""The steps: a refusal, a server on the GPU, and the comparison."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    with running(machine, model, *more, env=env, options=("--require-gpu",)) as server:
        ready = server.wait()
        answer = server.ask(prompt="hello " * 200, n_predict=64) if ready else {}
    return {
        "shown": server.start.get("verdict") == verdict and server.code == 0,
        "exit_code": server.code,
        "seconds until /health": server.healthy_after,
        "seconds until ready": ready,
        "timings": answer.get("timings") or answer.get("error"),
        "start": server.start,
        "stderr": server.stderr[-3000:] if server.code else "",
    }


_PROMPTS = (64, 2000)
"""Tokens of the prompts that are measured after a start."""

_NOISE = 0.05
"""Seconds by which a first prompt may exceed twice the second one's: the clock of a short one."""


def first_prompts(machine: Machine, model: Path, *more: str) -> Mapping[str, object]:
    """Measure the first and the second prompt after "ready", at two starts.

    The first one must take at most twice as long as the second. The caches are removed before.
    """
    dropped = machine.program("prune", "--caches", "--json")
    starts: list[Mapping[str, object]] = []
    shown = dropped.code == 0
    for _ in range(2):
        with running(machine, model, *more, options=("--require-gpu",)) as server:
            ready = server.wait()
            measured = {
                str(tokens): [_seconds(server, tokens) for _ in range(2)]
                for tokens in _PROMPTS
                if ready
            }
        shown &= bool(measured)
        for first, second in measured.values():
            shown &= first <= 2 * second + _NOISE
        starts.append({"seconds until ready": ready, "first and second prompt": measured})
    return {
        "shown": shown,
        "starts": starts,
        "caches": machine.program("doctor", "--json").data.get("caches"),
    }


def _seconds(server: Server, tokens: int) -> float:
    # Letters of the model's vocabulary, which differ from those of the prompts before.
    prompt = [259 + (number * number + tokens) % 26 for number in range(tokens)]
    seconds: float = server.ask(prompt=prompt, n_predict=1, cache_prompt=False)["seconds"]
    return seconds


@dataclass
class Server:
    """A server that ``serve`` runs.

    ``code``, ``start`` (the launcher's report) and ``stderr`` are known after its end.
    """

    child: subprocess.Popen[str]
    port: int
    log: Path
    began: float
    healthy_after: float | None = None
    code: int | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""

    def wait(self) -> float | None:
        """Wait until the program has judged the server; return the seconds since its start."""
        deadline = self.began + _PATIENCE
        while self.child.poll() is None and time.monotonic() < deadline:
            if self.healthy_after is None and is_healthy(self.port):
                self.healthy_after = round(time.monotonic() - self.began, 2)
            # The decision again, with the share, follows the warm-up.
            if "gpu=[" in self.log.read_text("utf-8", "replace"):
                return round(time.monotonic() - self.began, 2)
            time.sleep(0.05)
        return None

    def ask(self, **body: object) -> Mapping[str, Any]:
        """Ask for a completion; return the server's answer with its ``seconds``.

        A server that has crashed gives an ``error`` instead: its stderr is in the report.
        """
        return ask(self.port, **body)


def ask(port: int, **body: object) -> Mapping[str, Any]:
    """Ask the server at a port for a completion, as ``Server.ask`` does."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    found: dict[str, Any] = {}
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
            found = json.loads(answer.read())
    except OSError as error:
        found["error"] = repr(error)
    return {**found, "seconds": round(time.monotonic() - began, 3)}


@contextmanager
def running(
    machine: Machine,
    model: Path,
    *more: str,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Server]:
    """Start a server with the arguments ``more``; stop it at the end of the block.

    ``options`` are those of ``serve``.
    """
    port = free_port()
    words = ("serve", *options, "--json", "--", "-m", str(model), "--port", str(port), *more)
    log = machine.folder / "serve.log"
    with log.open("wb") as said:
        child = subprocess.Popen(
            [machine.command, *words],
            env={**machine.env, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    server = Server(child, port, log, time.monotonic())
    try:
        yield server
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            stdout, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # a server that is still loading does not handle signals
            child.kill()
            stdout, _ = child.communicate()
        server.code = child.returncode
        server.start = json.loads(stdout or "{}").get("data", {}).get("start") or {}
        server.stderr = log.read_text("utf-8", "replace")


def refuse_a_part(machine: Machine, model: Path) -> Mapping[str, object]:
    """Show that a server with a small part of its model on the GPU ends with 8, if more is asked.

    The same server passes if the user asks for that part only.
    """
    port = str(free_port())
    words = ("serve", "--require-gpu", "90 %", "--json", "--")
    done = machine.program(*words, "-m", str(model), "--port", port, "-ngl", "5")
    error = done.document.get("error") or {}
    named = isinstance(error, dict) and error.get("code") == "not-on-gpu"
    return {"shown": done.code == 8 and named, **done.told}  # noqa: PLR2004


def compare(
    machine: Machine, model: Path, variants: Iterable[str] = ("cpu", "vulkan")
) -> Mapping[str, object]:
    """Measure tokens per second of each installed variant; ``variants`` must be among them."""
    done = machine.program("bench", "-m", str(model), "--yes", "--json")
    measured = {each["variant"] for each in done.data.get("results", ())}
    shown = done.code == 0 and measured.issuperset(variants)
    return {"shown": shown, **done.told, "bench": done.data}


def is_healthy(port: int) -> bool:
    """Return whether a server answers there that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port of this machine that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # The system picks a free port; closing the socket frees it for the server.
        return int(listening.getsockname()[1])
