"""A router under load for hours: what a server leaves behind while it is used hard.

``python -m ci.endurance HOURS [--model MODEL.gguf]`` installs the build of the package index into a
folder of its own and serves models of several architectures behind one address, of which two may be
loaded at a time. Requests name them in every form of upstream's address, alone and at once; models
come and go, servers of models are killed or hang, and the router is restarted. Once a minute it
counts the processes, their files and memory, and the files of the state. It ends with 1 if a
request fails for another reason than such an event, or if anything grows.
"""

# ruff: noqa: S311 - what is drawn here is no secret
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from ci.gpulab.model import write_model
from tsuku_llm.launch.compute.reference_models import MODELS

PROGRAM: Final = (sys.executable, "-m", "tsuku_llm")
MINUTE: Final = 60.0
PATIENCE: Final = 300.0
"""Seconds for one answer; the machine does other work, and a model may have to be loaded."""

GROWTH: Final = 1.2
"""What the last third of the time may have more than the second one, of each count."""

HELLO: Final = [{"role": "user", "content": "hello"}]
ADDRESSES: Final[Sequence[tuple[str, Mapping[str, object]]]] = (
    ("/v1/completions", {"prompt": "one two three"}),
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/messages", {"messages": HELLO}),
)


class Endurance:
    """A home with a build, a folder of models, and a router; ``events`` counts what was done."""

    def __init__(self, folder: Path, model: Path | None) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        for name, data in MODELS.items():
            (self.models / f"{name}.gguf").write_bytes(data())
        write_model(self.models / "llama.gguf", layers=4, width=256, inner=512)
        if model:
            (self.models / "given.gguf").symlink_to(model.resolve())
        self.names = sorted(each.stem for each in self.models.iterdir())
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
        kept |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.home = folder / "home"
        self.env = {
            **kept,
            "HOME": str(folder),
            "TSUKU_HOME": str(self.home),
            "TSUKU_LLM_CHANNEL": "index",
            "TSUKU_LLM_BACKEND": "cpu",
            "TSUKU_LLM_MODEL_PATH": str(self.models),
        }
        self.events: Counter[str] = Counter()
        self.failed: list[str] = []
        self.record: dict[str, Any] = {}

    def program(self, *words: str) -> Any:
        """Run the program; return the data of its answer."""
        done = subprocess.run(
            [*PROGRAM, words[0], "--json", *words[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{words} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)["data"]

    def start(self) -> None:
        """Install the build, and serve every model; two may be loaded."""
        self.program("install")
        words = ("--port", "0", "-c", "256", "--models-max", "2", "--parallel", "2")
        self.record = self.program("serve", "--detach", "--", *words)

    def ask(self, name: str) -> None:
        """Ask a model in one of the forms; after an event some answers may be lost."""
        path, words = random.choice(ADDRESSES)
        if name in MODELS:  # their vocabulary has no text
            path, words = "/completion", {"prompt": [5, 6, 7], "n_predict": 4}
        body = json.dumps({"model": name, "max_tokens": 4, **words}).encode()
        end, said = time.monotonic() + PATIENCE, ""
        while time.monotonic() < end:
            try:
                self._post(path, body)
            except OSError as error:
                said = error.read().decode() if isinstance(error, HTTPError) else repr(error)
                self.events["lost answers"] += 1
                time.sleep(0.5)
            else:
                self.events["answers"] += 1
                return
        self.failed.append(f"{name} {path}: {said[:200]}")

    def _post(self, path: str, body: bytes) -> None:
        address = f"http://127.0.0.1:{self.record['port']}{path}"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - our own
            answer.read()

    def at_once(self) -> None:
        """Ask two models from four threads."""
        names = random.sample(self.names, 2) * 2  # more would wait for room
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self.ask, names))

    def end_one(self, number: signal.Signals) -> None:
        """Kill or stop the server of a model, and ask for that model again."""
        loaded = self.loaded()
        if not loaded:
            return
        name, pid = random.choice(sorted(loaded.items()))
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        self.events[number.name] += 1
        if number is signal.SIGSTOP:
            with suppress(ProcessLookupError):
                time.sleep(2)
                os.kill(pid, signal.SIGCONT)
        self.ask(name)

    def exchange(self) -> None:
        """Take a model away, restart the router, and bring it back."""
        gone = self.models / "llama.gguf"
        aside = self.models.parent / "aside.gguf"
        gone.rename(aside)
        self.record = self.restarted()
        aside.rename(gone)
        self.record = self.restarted()
        self.ask("llama")

    def restarted(self) -> Any:
        """Restart the router."""
        self.events["restarts"] += 1
        self.program("restart")
        return self.program("status")["servers"][0]

    def loaded(self) -> dict[str, int]:
        """Return the process of each loaded model."""
        models = self.program("status")["models"].get("default", ())
        return {each["name"]: each["pid"] for each in models}

    def counted(self) -> dict[str, float]:
        """Count what the server has now; memory in MB."""
        pids = {"supervisor": self.record["supervisor"], "router": self.record["pid"]}
        counts: dict[str, float] = {"models": len(self.loaded()), "lost": len(self._lost())}
        for what, pid in pids.items():
            counts[f"{what}, MB"] = _memory(pid)
            counts[f"{what}, files"] = _entries(f"/proc/{pid}/fd")
            counts[f"{what}, threads"] = _entries(f"/proc/{pid}/task")
        state = [each for each in (self.home / "llm" / "state").rglob("*") if each.is_file()]
        counts["state, files"] = len(state)
        counts["state, MB"] = sum(each.stat().st_size for each in state) / 1e6
        return counts

    def _lost(self) -> list[int]:
        """Return the processes of this home that neither the server nor its models are."""
        known = {
            os.getpid(),
            self.record["pid"],
            self.record["supervisor"],
            *self.loaded().values(),
        }
        return [pid for pid in self.processes() if pid not in known]

    def processes(self) -> list[int]:
        """Return every process that has this home in its environment."""
        wanted, found = f"TSUKU_HOME={self.home}".encode(), []
        for each in Path("/proc").iterdir():
            with suppress(OSError):
                if each.name.isdigit() and wanted in (each / "environ").read_bytes().split(b"\0"):
                    found.append(int(each.name))
        return found


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _grown(rows: list[dict[str, float]]) -> list[str]:
    """Compare the last third of the minutes with the second one: the first one warms up."""
    third = len(rows) // 3
    if not third:
        return []
    middle, last = rows[third : 2 * third], rows[2 * third :]
    found = []
    for what in rows[0]:
        before, after = (statistics.median(row[what] for row in part) for part in (middle, last))
        if after > before * GROWTH and after > before + 1:
            found.append(f"{what}: {before:.1f} grew to {after:.1f}")
    return found


def main() -> int:
    """Run for so many hours; print a row each ten minutes, and the summary as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hours", type=float)
    parser.add_argument("--model", type=Path, help="a larger model to serve as well")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    run = Endurance(folder, given.model)
    rows: list[dict[str, float]] = []
    try:
        run.start()
        rows = _loaded_for(run, given.hours * 3600)
    finally:
        run.program("stop")
        left = run.processes()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{dict(run.events)}\n\n| | first | least | median | most | last |")
    print("|---|---|---|---|---|---|")
    for what in rows[0]:
        values = [row[what] for row in rows]
        shown = (values[0], min(values), statistics.median(values), max(values), values[-1])
        print(f"| {what} | {' | '.join(f'{value:.1f}' for value in shown)} |")
    problems = [*run.failed, *_grown(rows), *(f"left behind: {pid}" for pid in left)]
    print("\n".join(problems[:20]) or "nothing failed, grew or was left behind")
    return bool(problems)


def _loaded_for(run: Endurance, seconds: float) -> list[dict[str, float]]:
    """Do what users do until the time is over, or Ctrl-C; count once a minute."""
    deeds: dict[Callable[[], None], int] = {
        lambda: run.ask(random.choice(run.names)): 200,
        run.at_once: 40,
        lambda: run.end_one(signal.SIGKILL): 4,
        lambda: run.end_one(signal.SIGSTOP): 4,
        run.exchange: 1,
    }
    rows, counted = [run.counted()], time.monotonic()
    end = counted + seconds
    with suppress(KeyboardInterrupt):
        while time.monotonic() < end:
            (deed,) = random.choices(tuple(deeds), tuple(deeds.values()))
            deed()
            if time.monotonic() - counted >= MINUTE:
                counted = time.monotonic()
                rows.append(run.counted())
                if len(rows) % 10 == 0:
                    print(
                        json.dumps({each: round(value, 1) for each, value in rows[-1].items()}),
                        flush=True,
                    )
    hours = (time.monotonic() - end + seconds) / 3600
    print(f"\n{hours:.1f} hours")
    return [*rows, run.counted()]


if __name__ == "__main__":
    sys.exit(main())
