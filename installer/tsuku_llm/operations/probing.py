"""The probe as a command. This is a separate module, so that ``probe`` imports no manifest."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.hardware import Hardware
from tsuku_llm.operations.session import Session
from tsuku_llm.probe import probe


def probe_machine(session: Session, *, record: Path | None = None) -> Hardware:
    """Return what the machine has; with ``record`` also write the raw answers to that file."""
    if record is None:
        return probe(session.machine.host)
    from tsuku_llm.snapshot import RecordingHost  # noqa: PLC0415

    recorder = RecordingHost(session.machine.host)
    hardware = probe(recorder)
    recorder.save(record)
    return hardware
