"""The warm-up of a start: whether one is needed, what the user is told, and the note about it.

The note lies beside what the drivers keep, so ``prune --caches`` removes both. Without a folder
that keeps the code there is no note, and every start that may compile is warmed up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import read_small, replace_file
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.driver_caches import caches_of, kept_or_nothing, may_compile
from tsuku_llm.launch.plan.fingerprint import drivers_alone
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.launch.plan.wishes import ELSEWHERE, wishes_in, without_options
from tsuku_llm.launch.run.warm_up import WarmedUp
from tsuku_llm.steps.drivers.caches import WARM, BuildCaches

_MOST = 64
"""Starts that are noted; the oldest ones go."""

_LARGEST = 1 << 16
"""Bytes of the note that are read."""

_TOLD_AT = (3.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Seconds after which the user is told that the server is not ready yet."""


def compiled_code(
    version: str, drivers: Sequence[str], devices: Sequence[ListedDevice], plan: LaunchPlan
) -> str:
    """Return a digest of what the compiled code of a start depends on.

    That is the build, the drivers, the devices, the arguments, and the size and time of the model's
    file.
    """
    model = wishes_in(plan.argv, plan.env).model
    status: list[int] = []
    if model:
        with suppress(OSError, ValueError):
            found = os.stat(model)
            status = [found.st_size, found.st_mtime_ns]
    content = [
        version,
        drivers_alone(drivers),
        [(each.name, each.description) for each in devices],
        list(without_options(plan.argv, ELSEWHERE)),
        sorted((k, v) for k, v in plan.env.items() if k.startswith(("LLAMA_ARG_", "GGML_"))),
        status,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Warming:
    """The listener to one warm-up; ``is_needed`` is False where nothing is left to compile.

    ``code`` is from ``compiled_code``. ``on_compiling`` is called once a second with the seconds
    that it takes so far.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        caches: BuildCaches,
        backend: str,
        code: str,
        on_compiling: Callable[[float], None] | None = None,
        *,
        machine_code: bool = False,
    ) -> None:
        self._note = note
        self._on_compiling = on_compiling
        self._backend = backend
        self._root = caches.root
        self._digest = code
        # Only the monitor's thread uses it, once the server runs.
        self._told = 0
        self._machine_code = machine_code
        self.is_needed = self.needs_prompts(Verdict.UNKNOWN)

    def needs_prompts(self, verdict: Verdict) -> bool:
        """Tell whether longer prompts have something to compile on a server with this verdict."""
        noted = self._digest in self._noted()
        return may_compile(self._backend, verdict, machine_code=self._machine_code, noted=noted)

    def on_waiting(self, seconds: float) -> None:
        """Say why the server is not ready yet, less and less often."""
        if self._on_compiling:
            self._on_compiling(seconds)
        due = sum(at <= seconds for at in _TOLD_AT)
        if due > self._told:
            first = (
                "the GPU's driver compiles code for this model, so that the first prompt need not "
                "wait for it"
            )
            self._note(f"compiling for {seconds:.0f} s" if self._told else first)
            self._told = due

    def on_warmed(self, result: WarmedUp) -> None:
        """Say how long it took, if that was told, and note a warm-up that a later start can use."""
        if self._told:
            incomplete = f" ({result.problem})" if result.problem else ""
            self._note(f"compiled in {result.seconds:.0f} seconds{incomplete}")
        # A driver that kept nothing compiles at the next start again.
        if result.unanswered or self._root is None:
            return
        folders = (self._root / cache.name for cache in caches_of(self._backend))
        kept = any(names for folder in folders for _, _, names in os.walk(folder))
        if not kept_or_nothing(self._backend, kept=kept):
            return
        content = records.encode({"format": 1, "warm": [*self._noted(), self._digest][-_MOST:]})
        # Without the note the next start is warmed up again.
        with suppress(OSError, StoreError):
            replace_file(self._root / WARM, content, mode=0o600)

    def _noted(self) -> tuple[str, ...]:
        if self._root is None:
            return ()
        with suppress(StoreError, ValueError):
            found = records.parse(read_small(self._root / WARM, _LARGEST) or b"null", _READ)
            warm: tuple[str, ...] = found["warm"]
            return warm
        return ()


_NOTE: dict[str, Any] = {"warm": records.many(records.text)}
_READ = records.fields(_NOTE)
