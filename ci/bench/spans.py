"""The program with a clock around the functions that do the work of an install.

``python -m ci.bench.spans install ...`` prints the time of each as its last line, as JSON. All
modules are loaded before the work begins; otherwise the program runs as usual.
"""

from __future__ import annotations

import functools
import importlib
import json
import time
from typing import Any

PHASES = {
    "catalog": "tsuku_llm.steps.choosing.choice:load_catalog",
    "probe": "tsuku_llm.steps.choosing.choice:probe",
    "linking": "tsuku_llm.steps.install.build_version:reuse_files",
    "hashing what is linked": "tsuku_llm.steps.install.build_version:verify_reused",
    "connections": "tsuku_llm.fetch.artifacts.parallel:Connection._fetch_from",
    "fetched and verified": "tsuku_llm.fetch.artifacts.download:download",
    "files unpacked": "tsuku_llm.archive.tree:Tree.write",
    "trial start": "tsuku_llm.steps.install.build_version:try_build",
    "files flushed": "tsuku_llm.store.finalize:seal_file",
    "commit": "tsuku_llm.store.store:Store.commit",
    "activation": "tsuku_llm.store.store:Store.activate",
    "archives removed": "tsuku_llm.store.store:Store.drop_downloads",
}
"""The phases that are measured, and the function that does each."""

LOADED, DONE = "modules loaded", "way out"

Span = tuple[str, float, float]
"""A phase's name, and the monotonic clock at its beginning and its end."""


def _watched(spans: list[Span]) -> None:
    for name, place in PHASES.items():
        module, _, path = place.partition(":")
        *owners, function = path.split(".")
        owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, function, _timed(name, getattr(owner, function), spans))


def _timed(name: str, function: Any, spans: list[Span]) -> Any:
    @functools.wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            spans.append((name, start, time.monotonic()))

    return timed


def _main() -> None:
    spans: list[Span] = []
    # Load all modules first, so that LOADED marks the end of all imports.
    from tsuku_llm.cli.main import main  # noqa: PLC0415

    _watched(spans)
    spans.append((LOADED, 0.0, time.monotonic()))
    try:
        main()
    finally:
        spans.append((DONE, 0.0, time.monotonic()))
        print(json.dumps(spans))


if __name__ == "__main__":
    _main()
