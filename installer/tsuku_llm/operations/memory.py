"""What a start leaves for the next one, in the state folder: the list of devices, and failures.

Both hold only as long as the drivers are what they were (``launch.driver_fingerprint``), and
both may be lost: a file that cannot be read, or is not ours, is as none, and where nothing can
be written every start asks anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm import launch
from tsuku_llm.durable import make_folder, read_small, replace_file
from tsuku_llm.errors import StoreError

_LIMIT = 1 << 20
_MOST = 16
"""Failures that are kept; who has more has other worries."""


class Failure(NamedTuple):
    """An installed version (its id) whose backend failed, why, and which one ran instead."""

    version: str
    reason: str
    instead: str


class Memory:
    """The files; ``drivers`` is what the drivers are now, None where that cannot be known."""

    def __init__(self, state: Path, drivers: tuple[str, ...] | None) -> None:
        self._state = state
        self._drivers = drivers

    def devices(self, version: str) -> tuple[launch.ListedDevice, ...] | None:
        """What a version listed, if nothing has changed since; None where it has to be asked."""
        found = self._read("devices.json")
        if self._drivers is None or found.get("version") != version:
            return None
        if found.get("drivers") != list(self._drivers):
            return None
        with suppress(TypeError):
            return tuple(launch.ListedDevice(**device) for device in found.get("devices", ()))
        return None

    def keep_devices(self, version: str, devices: tuple[launch.ListedDevice, ...]) -> None:
        """Remember a list that has the backend's devices: one without may be a passing one."""
        self._write(
            "devices.json", {"version": version, "devices": [each._asdict() for each in devices]}
        )

    def failure(self, version: str) -> Failure | None:
        """Why a version's backend failed here, on these drivers."""
        return self._failures().get(version)

    def keep_failure(self, failure: Failure) -> None:
        """Remember that a version's backend failed on these drivers."""
        failures = {**self._failures(), failure.version: failure}
        kept = list(failures.values())[-_MOST:]
        self._write("failures.json", {"failures": [each._asdict() for each in kept]})

    def _failures(self) -> dict[str, Failure]:
        """The failures on the drivers as they are: those on other drivers count no more."""
        found = self._read("failures.json")
        if self._drivers is None or found.get("drivers") != list(self._drivers):
            return {}
        with suppress(TypeError):
            failures = [Failure(**each) for each in found.get("failures", ())]
            return {failure.version: failure for failure in failures}
        return {}

    def _read(self, name: str) -> Mapping[str, Any]:
        with suppress(StoreError, ValueError, RecursionError):
            content = read_small(self._state / name, _LIMIT)
            document = json.loads(content) if content else {}
            return document if isinstance(document, dict) else {}
        return {}

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        if self._drivers is None:
            return
        content = json.dumps({"format": 1, "drivers": self._drivers, **document}, indent=1)
        with suppress(OSError, StoreError):
            make_folder(self._state)
            replace_file(self._state / name, content.encode("ascii") + b"\n")
