"""Moves the clock of the program in a test's children; Python imports it as it starts.

It runs in every child, so it does nothing until the clock is imported. The variable
has the seconds by which the clock differs from the system's: ``support.the_day`` sets it.
"""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

VARIABLE = "TESTS_CLOCK_SHIFT"
_CLOCK = "tsuku_llm.ground.clock"


def install() -> None:
    """Move the clock that this process has, or imports from now on."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if _CLOCK in sys.modules:
        _move(sys.modules[_CLOCK])


def _move(module: Any) -> None:
    real = module.now
    if hasattr(real, "is_moved"):  # a worker of xdist is such a child, and loads conftest.py, too
        return

    # The day of a process is in its environment. So a fixture can change it, and each program that
    # is forked from one process has its own.
    def now() -> datetime:
        shift = timedelta(seconds=float(os.environ.get(VARIABLE) or 0))
        moved: datetime = real() + shift
        return moved

    now.is_moved = True  # type: ignore[attr-defined]
    module.now = now


class _Finder:
    """Finds the clock as Python does, and moves it once it is run."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _CLOCK else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _move(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    install()
