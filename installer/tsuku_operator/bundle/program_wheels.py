"""The wheels that this program needs on another machine, by its lock. Pure.

The lock names each dependency for every platform and Python, with the digests of all its files.
pip chooses among these files; it evaluates markers for the Python that runs it, so they are
evaluated here for the other one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename

from tsuku_llm.steps.program.signed_program import LockedPackage

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""The Pythons that the program supports, as its metadata says."""

USUAL_GLIBC = "2.28"
"""The glibc that a platform is expected to have if no machine tells: RHEL 8 has it."""

_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_OLDER_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_GLIBC = re.compile(r"manylinux_2_([0-9]+)_.*")


@dataclass(frozen=True, slots=True)
class ProgramTarget:
    """A Python (such as ``3.11``) on a platform; ``glibc`` is that of the system, on Linux."""

    platform: str
    python: str
    glibc: str = USUAL_GLIBC

    @property
    def environment(self) -> dict[str, str]:
        """The values of markers there."""
        platform, system, machine, _ = _SYSTEMS[self.platform]
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "nt" if platform == "win32" else "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": system,
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": platform,
        }

    @property
    def options(self) -> tuple[str, ...]:
        """The options with which pip takes wheels for this target, and not for its own Python."""
        platform, *_, tag = _SYSTEMS[self.platform]
        tags = tuple(_manylinux(tag, self.glibc)) if platform == "linux" else (tag,)
        return (
            *(f"--platform={each}" for each in tags),
            f"--python-version={self.python}",
            "--implementation=cp",
        )


_SYSTEMS = {
    "linux-amd64": ("linux", "Linux", "x86_64", "x86_64"),
    "linux-arm64": ("linux", "Linux", "aarch64", "aarch64"),
    "darwin-amd64": ("darwin", "Darwin", "x86_64", "macosx_12_0_x86_64"),
    "darwin-arm64": ("darwin", "Darwin", "arm64", "macosx_12_0_arm64"),
    "windows-amd64": ("win32", "Windows", "AMD64", "win_amd64"),
    "windows-arm64": ("win32", "Windows", "ARM64", "win_arm64"),
}
"""What Python calls each platform of the manifest, and the tag of its wheels (of Linux a part)."""

PLATFORMS = tuple(_SYSTEMS)
"""The platforms for which this program can be put into a bundle."""


def _manylinux(machine: str, glibc: str) -> Iterator[str]:
    """List the tags of wheels that work with this glibc, the newest first."""
    newest = int(glibc.partition(".")[2])
    for minor in range(newest, _OLDEST_GLIBC[machine] - 1, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _OLDER_NAMES:
            yield f"{_OLDER_NAMES[minor]}_{machine}"


def needed_there(lock: Iterable[LockedPackage], target: ProgramTarget) -> tuple[LockedPackage, ...]:
    """Return the locked packages that the program needs on a target."""
    return tuple(
        each
        for each in lock
        if each.requirement.marker is None or each.requirement.marker.evaluate(target.environment)
    )


def needed_glibc(wheels: Iterable[str]) -> str | None:
    """Return the oldest glibc with which all of these wheels work; None if they need none."""
    needed = []
    for wheel in wheels:
        *_, tags = parse_wheel_filename(wheel)
        minors = [int(found[1]) for tag in tags if (found := _GLIBC.fullmatch(tag.platform))]
        minors += [
            minor
            for tag in tags
            for minor, name in _OLDER_NAMES.items()
            if tag.platform.startswith(f"{name}_")
        ]
        needed += [min(minors)] if minors else []
    return f"2.{max(needed)}" if needed else None
