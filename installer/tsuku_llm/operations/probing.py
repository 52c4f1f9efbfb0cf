"""What this machine has. A module of its own, so that ``probe`` loads no manifest."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.hardware import Hardware
from tsuku_llm.operations.session import Session
from tsuku_llm.probe import probe


def probe_machine(session: Session, *, record: Path | None = None) -> Hardware:
    """What the machine has; with ``record`` the raw answers are written to that file."""
    if record is None:
        return probe(session.host)
    from tsuku_llm.snapshot import RecordingHost  # noqa: PLC0415

    recorder = RecordingHost(session.host)
    hardware = probe(recorder)
    recorder.save(record)
    return hardware
