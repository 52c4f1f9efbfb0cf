"""Why each variant fits this machine or not."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.hardware import Hardware
from tsuku_llm.operations.choice import Choice, choose
from tsuku_llm.operations.session import Session
from tsuku_llm.probe import probe
from tsuku_llm.snapshot import RecordingHost, ReplayHost


def explain(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Choice:
    """The choice for this machine, or for the recorded one in ``hardware_file``.

    Raises ``SnapshotError`` for a file that is no recording.
    """
    hardware = probe(ReplayHost.load(hardware_file)) if hardware_file else None
    return choose(session, release=release, hardware=hardware)


def probe_machine(session: Session, *, record: Path | None = None) -> Hardware:
    """What the machine has; with ``record`` the raw answers are written to that file."""
    if record is None:
        return probe(session.host)
    recorder = RecordingHost(session.host)
    hardware = probe(recorder)
    recorder.save(record)
    return hardware
