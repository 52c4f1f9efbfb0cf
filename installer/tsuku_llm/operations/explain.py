"""Why each variant fits a machine or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.manifest import Variant
from tsuku_llm.operations.choice import Choice, choose
from tsuku_llm.operations.serve import installed_versions
from tsuku_llm.operations.session import Session
from tsuku_llm.probe import probe
from tsuku_llm.snapshot import ReplayHost
from tsuku_llm.store import Installed, version_id


@dataclass(frozen=True, slots=True)
class Matrix:
    """The variants of a release, this machine, and the versions in the store."""

    choice: Choice
    versions: tuple[Installed, ...] = ()
    active: Installed | None = None

    def state(self, variant: Variant) -> str | None:
        """``active`` or ``installed`` if exactly this build is, else None."""
        digests = [artifact.sha256 for artifact in variant.artifacts]
        wanted = version_id(self.choice.release.release, variant.name, digests)
        if self.active and self.active.id == wanted:
            return "active"
        return "installed" if any(each.id == wanted for each in self.versions) else None


def explain(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Choice:
    """The choice for this machine, or for the recorded one in ``hardware_file``.

    Raises ``SnapshotError`` for a file that is no recording.
    """
    hardware = probe(ReplayHost.load(hardware_file)) if hardware_file else None
    return choose(session, release=release, hardware=hardware)


def backends(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Matrix:
    """Every variant against the machine, whatever backend is asked for, and what is installed.

    What is installed here says nothing about a machine in ``hardware_file``. Raises as
    ``explain`` does, and ``StoreError`` for a store that cannot be read.
    """
    anything = session._replace(backend="auto")
    choice = explain(anything, release=release, hardware_file=hardware_file)
    if hardware_file:
        return Matrix(choice)
    return Matrix(choice, *installed_versions(session))
