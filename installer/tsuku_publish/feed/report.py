"""What a run of the feed did, and what people must do: the values, and their text. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tsuku_publish.feed.sandbox import SandboxStart

OPEN = 11
"""The exit code of the feed while something is on the list."""
_SHOWN = 3
"""Facts of a matter that are printed; the JSON document has all."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An asset that a release file does not have; ``draft`` is TOML for people, or empty."""

    release: str
    asset: str
    reason: str
    draft: str


@dataclass(frozen=True, slots=True)
class StableProposal:
    """A build that may become stable: what people read before they promote it.

    ``since`` is the signed time. ``new`` and ``gone`` are its variants in comparison with the
    release that it ``replaces``.
    """

    release: str
    version: str
    since: str
    hours: int
    replaces: str | None
    new: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matter:
    """One open matter: what it is, since when, what happens if people do nothing, what to run.

    ``key`` names it for ``feed --accept``. ``facts`` are its parts, such as one line for each
    asset. ``about`` is what an acceptance accepts. ``drafts`` is TOML text to review.
    """

    key: str
    what: str
    since: str
    otherwise: str
    command: str
    facts: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Return it as text."""
        hidden = len(self.facts) - _SHOWN
        return (
            f"{self.key}: {self.what}, since {self.since[:16].replace('T', ' ')} UTC",
            *(f"  {fact}" for fact in self.facts[:_SHOWN]),
            *([f"  and {hidden} more: --json shows all"] if hidden > 0 else ()),
            f"  if you do nothing: {self.otherwise}",
            f"  to do: {self.command}",
        )


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


def text(matters: Iterable[Matter]) -> tuple[str, ...]:
    """Return the list as people read it, with the drafted rules at its end."""
    found = tuple(matters)
    if not found:
        return ("nothing is to be done",)
    lines = [f"to be done: {len(found)}"]
    for each in found:
        lines += ["", *each.lines()]
    for draft in dict.fromkeys(draft for each in found for draft in each.drafts):
        lines += ["", *draft.splitlines()]
    return tuple(lines)


def prometheus(matters: Iterable[Matter], news: datetime | None) -> str:
    """Return the list as Prometheus reads it; ``news`` is when the channel got its newest build."""

    def seconds(stamp: str) -> int:
        return int(datetime.strptime(f"{stamp[:-1]}+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp())

    found = tuple(matters)
    lines = [
        "# HELP tsuku_publish_matter Since when something is to be done, in seconds since 1970.",
        "# TYPE tsuku_publish_matter gauge",
        *(f'tsuku_publish_matter{{key="{each.key}"}} {seconds(each.since)}' for each in found),
        "# HELP tsuku_publish_matters How many things people have to do.",
        "# TYPE tsuku_publish_matters gauge",
        f"tsuku_publish_matters {len(found)}",
    ]
    if news is not None:
        lines += [
            "# HELP tsuku_publish_news When the channel got its newest build, since 1970.",
            "# TYPE tsuku_publish_news gauge",
            f"tsuku_publish_news {int(news.timestamp())}",
        ]
    return "\n".join(lines) + "\n"
