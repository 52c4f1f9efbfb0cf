"""What people must do: one list, which the feed keeps and every place prints. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

OPEN = 11
"""The exit code of the feed while something is on the list."""
_SHOWN = 3
"""Facts of a matter that are printed; the JSON document has all."""


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


class MatterList:
    """The list of one run. A matter that the last run had keeps its time."""

    def __init__(self, known: Iterable[Matter], accepted: Collection[str], now: datetime) -> None:
        self._known = {each.key: each for each in known}
        self._accepted = accepted
        self._now = now
        self._found: dict[str, Matter] = {}

    def add(
        self,
        key: str,
        what: str,
        otherwise: str,
        command: str,
        facts: Mapping[str, str],
        drafts: Iterable[str] = (),
    ) -> None:
        """Add a matter; ``facts`` are its lines, by what each is about.

        Accepted ones are left out, and without any fact nothing is open. ``{count}`` in ``what``
        is their number.
        """
        left = {about: line for about, line in facts.items() if about not in self._accepted}
        if not left:
            return
        before = self._known.get(key)
        self._found[key] = Matter(
            key=key,
            what=what.replace("{count}", str(len(left))),
            since=before.since if before else f"{self._now:%Y-%m-%dT%H:%M:%SZ}",
            otherwise=otherwise,
            command=command,
            facts=tuple(left.values()),
            about=tuple(left),
            drafts=tuple(dict.fromkeys(filter(None, drafts))),
        )

    @property
    def open(self) -> tuple[Matter, ...]:
        """The matters, oldest first."""
        return tuple(sorted(self._found.values(), key=lambda each: each.since))


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


def metrics(matters: Iterable[Matter], news: datetime | None) -> str:
    """Return the list as Prometheus reads it; ``news`` is when the channel got its newest build."""
    found = tuple(matters)
    lines = [
        "# HELP tsuku_publish_matter Since when something is to be done, in seconds since 1970.",
        "# TYPE tsuku_publish_matter gauge",
        *(f'tsuku_publish_matter{{key="{each.key}"}} {_seconds(each.since)}' for each in found),
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


def _seconds(stamp: str) -> int:
    return int(datetime.strptime(f"{stamp[:-1]}+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp())
