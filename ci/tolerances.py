"""How far right builds differ from the right answers, and from themselves, on this machine.

``python -m ci.tolerances SERVER`` lets the gate judge a server in each of its settings and
with each of its plugins for a kind of processor. With ``--model MODEL.gguf`` it also compares the
canary's answers of that model with the one of the plain server. With ``--wrong`` it does both with
the kernels of ``tests/support/c/wrong_kernels.c`` as well. The bounds of ``launch.compute`` lie
between the two. ``--text`` measures what ``bench`` compares instead: what the model expects of a
text. With ``--starts N`` it judges N starts instead, each with settings drawn at random:
none may be refused. ``tolerances.md`` has what it printed, and on what.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.launch.ask.canary import ask_canary
from tsuku_llm.launch.ask.health import exchange
from tsuku_llm.launch.ask.speed import read_along
from tsuku_llm.launch.compute.canary_answer import Answer, deviation, divergence, what_is_wrong
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.plan.wishes import Wishes
from tsuku_llm.launch.run.computing import compute

SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "one thread": ("LLAMA_ARG_THREADS=1",),
    "three threads": ("LLAMA_ARG_THREADS=3",),
    "flash attention on": ("LLAMA_ARG_FLASH_ATTN=on",),
    "flash attention off": ("LLAMA_ARG_FLASH_ATTN=off",),
    "batches of 8": ("LLAMA_ARG_BATCH=8", "LLAMA_ARG_UBATCH=8"),
    "batches of 64": ("LLAMA_ARG_UBATCH=64",),
    "one slot": ("LLAMA_ARG_N_PARALLEL=1",),
    "cache in Q8_0": ("LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_CACHE_TYPE_V=q8_0"),
    "no repacking": ("GGML_CPU_REPACK=0",),
}
"""What changes the kernels or the order of their sums, and no answer."""

CHOICES: dict[str, tuple[str, ...]] = {
    "LLAMA_ARG_THREADS": ("1", "2", "3", "4"),
    "LLAMA_ARG_THREADS_BATCH": ("1", "2", "4"),
    "LLAMA_ARG_FLASH_ATTN": ("on", "off", "auto"),
    "LLAMA_ARG_BATCH": ("8", "32", "512", "2048"),
    "LLAMA_ARG_UBATCH": ("8", "64", "512"),
    "LLAMA_ARG_N_PARALLEL": ("1", "2"),
    "LLAMA_ARG_KV_UNIFIED": ("0", "1"),
    "LLAMA_ARG_CONT_BATCHING": ("0", "1"),
    "LLAMA_ARG_CTX_SIZE": ("2048", "4096", "8192"),  # a slot has half of it
    "GGML_CPU_REPACK": ("0", "1"),
}
"""What a start draws from; each variable is left out as often as it has a value."""

_KERNELS = Path(__file__).parents[1] / "tests" / "support" / "c" / "wrong_kernels.c"
_FAULT = re.compile(r'\bis\("([^"]+)"\)|^(?:DOT|REPACKED)\(\w+, "([^"]+)"', re.MULTILINE)
_HANGS = 20.0
"""Seconds for a model; a fault hangs for ever, and no right build takes as long."""

_PATIENCE = 300.0
"""Seconds for a load, and for an answer: other programs may use the machine."""


class Found(NamedTuple):
    """How one setting answers, in words: at the gate, and to the canary."""

    setting: str
    gate: str
    canary: str


class Subject(NamedTuple):
    """A server of a build, and where it computes; ``model`` is asked the canary's question."""

    server: Path
    backend: str
    device: str | None
    model: Path | None

    def at_the_gate(self, variables: Sequence[str], folder: Path) -> str:
        """Return the deviation from the reference, or why there is none."""
        build = Build(folder, self._wrapped(variables, folder), self.backend, self._arguments)
        faulty = any(each.startswith("FAULT=") for each in variables)
        limit = _HANGS if faulty else None
        try:
            found = compute(build, os.environ, self.device, folder / "models", limit=limit)
        except GateFailed as error:
            far = error.deviation
            return f"refused, {far:.1%}" if far else f"refused: {error.message.partition(': ')[2]}"
        if found.deviation is None:
            return f"not judged: {found.not_computed}"
        return f"{found.deviation:.2%}{' of a part' if found.not_computed else ''}"

    def canary(self, variables: Sequence[str], folder: Path, *, beside: bool = False) -> Answer:
        """Return the answer to the canary; ``beside`` other requests, which share its batches."""
        with self.serving(variables, folder) as address:
            if not beside:
                return ask_canary(address, Wishes(), limit=_PATIENCE).answer
            # Longer than the canary takes: they are computed before, beside and after it.
            body = {"prompt": list(range(5, 35)), "n_predict": 24, "cache_prompt": False}
            with ThreadPoolExecutor(3) as pool:
                others = [
                    pool.submit(exchange, address, "/completion", body, limit=_PATIENCE)
                    for _ in range(3)
                ]
                answer = ask_canary(address, Wishes(), limit=_PATIENCE).answer
                for each in others:
                    each.result()
            return answer

    @property
    def _arguments(self) -> tuple[str, ...]:
        return ("--device", "none") if self.backend == "cpu" else ()

    def _wrapped(self, variables: Sequence[str], folder: Path) -> str:
        """Write a server with these variables: the gate passes none that change its answers."""
        script = folder / "server.sh"
        words = shlex.join([*variables, str(self.server)])
        script.write_text(f'#!/bin/sh\nexec env {words} "$@"\n', "utf-8")
        script.chmod(0o755)
        return script.name

    @contextmanager
    def serving(self, variables: Sequence[str], folder: Path) -> Iterator[ServerAddress]:
        """Run the server with its model until the end of the block."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = ServerAddress(port=probe.getsockname()[1])
        device = ("-ngl", "99", "--device", self.device) if self.device else self._arguments
        where = ("-m", str(self.model), "-c", "2048", "--port", str(address.port))
        server = folder / self._wrapped(variables, folder)
        with (folder / "log").open("wb") as log:
            child = subprocess.Popen([server, *where, *device], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _PATIENCE
            while child.poll() is None and time.monotonic() < deadline and not _is_ready(address):
                threading.Event().wait(0.1)
            yield address
        finally:
            child.kill()
            child.wait()


def measured(subject: Subject, settings: dict[str, tuple[str, ...]]) -> Iterator[Found]:
    """Yield what each setting answers; the first one is what the others are compared with."""
    right: Answer = ()
    for name, variables in settings.items():
        with TemporaryDirectory() as folder:
            gate = subject.at_the_gate(variables, Path(folder)) + _unused(variables)
            canary = ""
            if subject.model:
                answer = subject.canary(variables, Path(folder))
                right = right or answer
                canary = _nats(answer, right) + _unused(variables)
            yield Found(name, gate, canary)
    if subject.model:
        with TemporaryDirectory() as folder:
            answer = subject.canary((), Path(folder), beside=True)
            yield Found("beside other requests", "always so", _nats(answer, right))


def of_the_text(subject: Subject, settings: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield how far what each setting expects of a text is from the first one's."""
    right: Answer = ()
    for name, variables in settings.items():
        with TemporaryDirectory() as folder, subject.serving(variables, Path(folder)) as address:
            answer = read_along(address)
        right = right or answer
        apart = divergence(answer, right)
        far = what_is_wrong(answer) or ("no answer" if apart is None else f"{apart:.3f} nats")
        yield f"- {name}: {far}{_unused(variables)}, {len(answer)} tokens"


def of_each_plugin(subject: Subject) -> Iterator[Found]:
    """Yield what each plugin for a kind of processor answers, if the build has several."""
    plugins = sorted(subject.server.parent.glob("libggml-cpu-*"))
    for plugin in plugins:
        with TemporaryDirectory() as folder:
            others = [each.name for each in plugins if each != plugin]
            tree = shutil.copytree(
                subject.server.parent,
                Path(folder, "tree"),
                symlinks=True,
                ignore=shutil.ignore_patterns(*others),
            )
            alone = subject._replace(server=tree / subject.server.name, model=None)
            yield Found(plugin.name, alone.at_the_gate((), Path(folder)), "")


def drawn(number: int) -> tuple[str, ...]:
    """Return the settings of one start, the same for each run of this command."""
    draw = random.Random(number)  # noqa: S311 - no secret
    found = ((name, draw.choice(("", draw.choice(values)))) for name, values in CHOICES.items())
    return tuple(f"{name}={value}" for name, value in found if value)


def starts(subject: Subject, count: int, jobs: int) -> Iterator[Found]:
    """Yield the starts that the gate refused or did not judge, and last a summary of all.

    ``jobs`` of them are judged at a time.
    """

    def judged(number: int) -> Found:
        variables = drawn(number)
        with TemporaryDirectory() as folder:
            gate = subject.at_the_gate(variables, Path(folder))
        return Found(f"start {number}: {' '.join(variables)}", gate, "")

    deviations = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(judged, range(count)):
            if re.fullmatch(r"[0-9.]+%", found.gate):
                deviations.append(float(found.gate[:-1]))
            else:
                yield found
    spread = ""
    if deviations:
        middle = statistics.median(deviations)
        spread = f": {min(deviations):.2f}% to {max(deviations):.2f}%, median {middle:.2f}%"
    yield Found(f"{count} starts", f"{len(deviations)} were right{spread}", "")


def wrong_settings(folder: Path) -> dict[str, tuple[str, ...]]:
    """Compile the wrong kernels; return the settings in which a server has each of them."""
    library = folder / "libwrong.so"
    options = ("-O1", "-shared", "-fPIC", "-o", str(library), str(_KERNELS), "-ldl", "-lm")
    subprocess.run(["gcc", *options], check=True)
    faults = sorted({one or two for one, two in _FAULT.findall(_KERNELS.read_text("utf-8"))})
    seen = f"FAULT_SEEN={folder / 'seen'}"
    variables = ("LLAMA_ARG_THREADS=1", f"LD_PRELOAD={library}", seen)
    return {f"wrong: {fault}": (*variables, f"FAULT={fault}") for fault in faults}


def _unused(variables: Sequence[str]) -> str:
    """Say if a wrong kernel was not called: not every processor and model uses each one."""
    for variable in variables:
        name, _, value = variable.partition("=")
        if name == "FAULT_SEEN":
            seen = Path(value)
            if not seen.exists():
                return " (not called)"
            seen.unlink()
    return ""


def machine(subject: Subject) -> Iterator[str]:
    """Yield what was measured, and on what."""
    words = [str(subject.server), "--version"]
    said = subprocess.run(words, check=True, capture_output=True, text=True)
    lines = (said.stdout + said.stderr).splitlines()
    yield next((line for line in lines if line.startswith("version:")), "version unknown")
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    yield f"{models[0] if models else platform.processor()}, {len(models)} threads"
    kernel = platform.release().partition("-")[0]
    system = f"{platform.system()} {kernel}, {' '.join(platform.libc_ver())}"
    yield f"{system}; {subject.backend} {subject.device or ''}".rstrip()
    if subject.model:
        yield f"model: {subject.model.name}, {subject.model.stat().st_size} bytes"


def main(words: Sequence[str]) -> None:
    """Print the table of a server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", type=Path)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device", help="such as Vulkan0")
    parser.add_argument("--model", type=Path, help="a model that is asked the canary's question")
    parser.add_argument("--wrong", action="store_true", help="also with wrong kernels (CPU)")
    parser.add_argument("--starts", type=int, metavar="N", help="judge N starts instead")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="starts at a time; 1")
    parser.add_argument("--text", action="store_true", help="compare what bench compares instead")
    given = parser.parse_args(words)
    if given.text and not given.model:
        parser.error("--text needs --model")
    model = given.model.resolve() if given.model else None
    subject = Subject(given.server.resolve(), given.backend, given.device, model)
    for line in machine(subject):
        print(line)
    with TemporaryDirectory() as folder:
        settings = dict(SETTINGS)
        if given.wrong:
            settings |= wrong_settings(Path(folder))
        if given.text:
            for line in of_the_text(subject, settings):
                print(line, flush=True)
            return
        print("\n| setting | gate | canary, nats |\n|---|---|---|")
        if given.starts:
            for row in starts(subject, given.starts, given.jobs):
                print(f"| {' | '.join(row)} |", flush=True)
            return
        # Each row when it is there: all of them take minutes.
        for row in chain(of_each_plugin(subject), measured(subject, settings)):
            print(f"| {' | '.join(row)} |", flush=True)


def _nats(answer: Answer, right: Answer) -> str:
    """Return how far an answer is from the first one; what cannot be a number says why."""
    if not answer:
        return "no answer"
    if wrong := what_is_wrong(answer):
        return wrong
    other = "" if [each.token for each in answer] == [each.token for each in right] else ", other"
    return f"{deviation(answer, right):.2f}{other}"


def _is_ready(address: ServerAddress) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
