"""The reasons why each variant fits a machine or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.manifest import Variant
from tsuku_llm.operations.choice import Choice, choose, version_of
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.staying import staying
from tsuku_llm.probe import probe
from tsuku_llm.snapshot import ReplayHost
from tsuku_llm.store.installed import Installed


@dataclass(frozen=True, slots=True)
class Matrix:
    """The variants of a release, this machine, and the installed versions."""

    choice: Choice
    versions: tuple[Installed, ...] = ()
    active: Installed | None = None

    def state(self, variant: Variant) -> str | None:
        """Return ``active`` or ``installed`` if exactly this build is, else None."""
        # The id contains the digests: another build of the same name has another id.
        wanted = version_of(self.choice.release.release, variant)
        if self.active and self.active.id == wanted:
            return "active"
        return "installed" if any(each.id == wanted for each in self.versions) else None


def explain(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Choice:
    """Return the choice for this machine, or for the recorded machine in ``hardware_file``.

    Raises ``SnapshotError`` for a file that is not a recording.
    """
    hardware = probe(ReplayHost.load(hardware_file)) if hardware_file else None
    if release is None:
        session = staying(session)
    return choose(session, release=release, hardware=hardware)


def backends(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Matrix:
    """Compare every variant of all backends with the machine, and say which are installed.

    For a machine in ``hardware_file`` the installed versions are left out: they belong to this
    machine. Raises the errors of ``explain``, and ``StoreError`` if the store cannot be read.
    """
    anything = session.with_settings(backend="auto")
    choice = explain(anything, release=release, hardware_file=hardware_file)
    if hardware_file:
        return Matrix(choice)
    reader = session.reader
    return Matrix(choice, reader.installed(), reader.active())
