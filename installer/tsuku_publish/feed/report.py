"""What a run of the feed did, and what is measured by now that users know as not measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.feed.choosing import LeftOut, StableProposal, number
from tsuku_publish.feed.matters import Matter
from tsuku_publish.feed.sandbox import SandboxStart
from tsuku_publish.release_files.plan import TARGETS, Plan
from tsuku_publish.repository.checking import FIRST_ROOT, verify
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.upstream.facts import UpstreamRelease


@dataclass(frozen=True, slots=True)
class TakenRelease:
    """A release that this run has measured."""

    release: str
    archives: int
    attested: bool
    started: tuple[SandboxStart, ...]


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What a run did. ``people`` is the list of what people must do.

    ``taken`` are new in the channel; ``measured`` were recorded before, without their archives.
    ``held`` are recorded, and lack what the last release taken has: people decide about them.
    ``offered`` are the releases of the channel, newest first. ``changed`` is whether this run
    changed what is to be signed.
    """

    taken: tuple[TakenRelease, ...]
    measured: tuple[TakenRelease, ...]
    waiting: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    stopped: Mapping[str, str]
    held: Mapping[str, tuple[str, ...]]
    offered: tuple[str, ...]
    forgotten: tuple[str, ...]
    proposal: StableProposal | None
    people: tuple[Matter, ...]
    changed: bool


def unmeasured(channels: Iterable[str], recorded: Mapping[str, UpstreamRelease]) -> tuple[str, ...]:
    """Return which releases of these channels are recorded without their archives, newest first."""
    found = {tag for tag in channels if tag in recorded and recorded[tag].unmeasured is not None}
    return tuple(sorted(found, key=number, reverse=True))


def measured_since(plan: Plan, recorded: Mapping[str, UpstreamRelease]) -> tuple[str, ...]:
    """Return what people signed as not measured, and what is measured by now, newest first.

    Raises ``PublishError`` for a published repository that clients would refuse.
    """
    copy = RepositoryFolder(plan.signed)
    root = copy.read(FIRST_ROOT)
    if root is None:
        return ()
    found = set()
    for target in verify(copy, root).targets.values():
        tag = str(target.custom["release"])
        measured = tag in recorded and recorded[tag].unmeasured is None
        if target.role == TARGETS and measured:
            document = parse_json(copy.read(target.name) or b"{}")
            found |= {tag} if "unmeasured" in document else set()
    return tuple(sorted(found, key=number, reverse=True))
