"""Two commands run in turn, so that whatever else the machine does slows both alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Command = Sequence[str]


@dataclass(frozen=True)
class Samples:
    """Seconds of every run of each command, in the order in which they were run."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """The median of one command, in seconds."""
        return statistics.median(self.seconds[name])


def interleaved(
    commands: Mapping[str, Command], rounds: int, env: Mapping[str, str] | None = None
) -> Samples:
    """Run every command once in each round; the first round warms the caches and is dropped.

    Raises ``CalledProcessError`` when one fails: what did not do its work is not measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    environment = {**os.environ, **(env or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    for number in range(rounds + 1):
        for name, command in commands.items():
            taken = _timed(command, environment)
            if number:
                seconds[name].append(taken)
    return Samples({name: tuple(values) for name, values in seconds.items()})


def _timed(command: Command, environment: Mapping[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        command,
        env=environment,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start
