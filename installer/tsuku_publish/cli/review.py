"""Commands for people who decide: what would change, and which release becomes stable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground import clock
from tsuku_publish.cli.options import (
    FOLDER,
    TIME,
    channel_option,
    data_option,
    gather_option,
    into_option,
    offline_option,
    published_at,
    published_option,
    root_option,
    seen_at,
)
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files.documents import PUBLISHER
from tsuku_publish.release_files.plan import load_plan, save_channel
from tsuku_publish.release_files.promoted import promotion, save_promoted
from tsuku_publish.release_files.sightings import observe, stated_by
from tsuku_publish.repository.checking import first_root, verify
from tsuku_publish.repository.copies import RepositoryFolder, copy_at
from tsuku_publish.repository.folder import locked, require_own
from tsuku_publish.signing.ceremony import is_begun, next_state, require_own_keys
from tsuku_publish.signing.published import require_not_behind
from tsuku_publish.signing.review import ReleaseChange, Review
from tsuku_publish.signing.review import review as compared

ALARM = "WARNING: "
"""How a line begins that is shown in red: a thief's change would be there."""

on_option = click.option(
    "--on",
    "now",
    type=TIME,
    metavar="DAY",
    default=clock.stamp,
    help="As if it were that day, or time.",
)


@click.command(cls=Command)
@data_option
@root_option
@into_option
@gather_option
@channel_option
@published_option
@offline_option
@on_option
@click.option(
    "--write",
    "folder",
    type=FOLDER,
    metavar="FOLDER",
    help="Also write the release files there, not signed.",
)
def review(
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path | None,
    gather: Path | None,
    channel: str | None,
    place: str | None,
    offline: bool,
    now: datetime,
    folder: Path | None,
) -> CommandResult:
    """Show what a signature would change.

    It compares the data with the signed repository, and signs nothing. With --gather it shows what
    other holders have signed there, with --channel the next state of one channel. It first asks
    where clients look whether that repository is what is published.
    """
    now = now.replace(tzinfo=timezone.utc)
    require_own(data)
    own = load_plan(data)
    into = into or own.signed
    require_own(into, *filter(None, [gather]))
    begun = gather is not None and is_begun(gather, into)
    state = next_state(data, into, now, trusted_root, gather, channel, higher=not begun)
    require_own_keys(state.plan, {}, into)
    if there := published_at(place, into, own, seen_at("now"), offline=offline):
        require_not_behind(there, state, into)
    found = compared(state, RepositoryFolder(into))
    written = state.files if folder else ()
    for each in written:
        path = Path(folder or "", each.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each.data)
    answer = {
        "review": found,
        "gathered": begun,
        "files": {each.path: each.custom["channels"] for each in written},
    }
    lines = (*review_lines(found), *(f"{folder}: {each.path}" for each in written))
    return CommandResult(answer, lines)


@click.command(cls=Command)
@data_option
@click.argument("releases", nargs=-1, required=True, metavar="RELEASE...")
@click.option("--to", "channel", required=True, metavar="CHANNEL", help="The channel that gets it.")
@click.option("--from", "origin", metavar="CHANNEL", help="The channel that has it.")
@click.option("--because", metavar="REASON", default="", help="Why it cannot wait for 72 hours.")
@click.option(
    "--published", metavar="PLACE", help="Where the channel is published; as repository.toml says."
)
@on_option
def promote(
    *,
    data: Path,
    releases: tuple[str, ...],
    channel: str,
    origin: str | None,
    because: str,
    published: str | None,
    now: datetime,
) -> CommandResult:
    """Put releases that a channel has tried into one that people sign.

    The channel must have had exactly that release file for 72 hours: by what its signer states, and
    by what you saw (check and promote record it). Users get it after: sign --raise, publish.
    """
    now = now.replace(tzinfo=timezone.utc)
    with locked(data):
        plan = load_plan(data)
        if channel not in plan.channels or channel in plan.delegated:
            raise PublishError(
                f"{channel} is no channel that the signers of targets sign",
                facts=(f"channels: {', '.join(plan.channels)}",),
                hint="name one that people sign: --to CHANNEL",
            )
        copy = copy_at(published or plan.published or str(plan.signed))
        root = first_root(copy)
        repository = verify(copy, root)
        if late := [
            role for role in (*repository.expired(now), *repository.late(now)) if role != "root"
        ]:
            raise PublishError(f"the published {', '.join(late)} has expired: what is newer?")
        seen = observe(repository, root, now)
        done = []
        for release in dict.fromkeys(releases):
            target = repository.targets.get(f"releases/{release}.json")
            source = target.role if target else None
            if target is None or source not in plan.delegated or origin not in (None, source):
                channels = [origin] if origin else plan.delegated
                raise PublishError(
                    f"{release} is in no channel with its own signers in {copy}",
                    facts=(f"looked for in: {', '.join(channels) or 'none'}",),
                    hint="sign and publish that channel first, or name it: --from CHANNEL; add and "
                    "sign put a release into a channel that people sign",
                )
            if any(each.release == release and not each.withdrawn for each in plan.revoked):
                raise PublishError(f"{release} is revoked")
            stated = stated_by(target)
            done.append(promotion(release, source, stated, seen[source][release], now, because))
        save_promoted(data, [*plan.promoted, *done])
        taken = [each.release for each in done]
        others = [each for each in plan.channels[channel] if each not in taken]
        save_channel(data, channel, (*taken, *others))
    answer = {
        "channel": channel,
        "releases": [
            {"release": each.release, "sha256": each.sha256, "because": each.because or None}
            for each in done
        ],
    }
    lines = [f"{each.release} goes from {each.origin} to {channel}" for each in done]
    return CommandResult(answer, (*lines, "next: review, sign --raise, publish"))


def review_lines(found: Review) -> Iterator[str]:
    """Show a review to people, in one screen if little changes."""
    for release in found.releases:
        yield from _release_lines(release)
    lists = {
        "revoked": found.revoked,
        "withdrawn": found.withdrawn,
        "FORGOTTEN": found.forgotten,
    }
    if found.program:
        yield f"PROGRAM   {found.program}"
    yield from (f"{word:9} {tag}" for word, tags in lists.items() for tag in tags)
    for role in found.roles:
        old, new = role.threshold
        instead = f" instead of {old}" if old else ""
        threshold = "" if old == new else f", {new} must sign{instead}"
        yield f"{role.role:9} {role.before} -> {role.after}, until {role.expires}{threshold}"
        yield from _indented({"joined": role.joined, "LEFT": role.left})
        if digest := found.digests.get(role.role):
            yield f"          content: sha256 {digest}"
        yield from (f"{ALARM}{line}" for line in role.alarming)
    yield from (f"{name:9} stays as it is published" for name in found.kept)


def _release_lines(each: ReleaseChange) -> Iterator[str]:
    where = ", ".join(each.after or each.before)
    if each.change in ("moved", "promoted"):
        where = f"{', '.join(each.before) or 'no channel'} -> {where}"
    size = f"{each.bytes / 1e6:,.0f} MB" if each.bytes else "unknown size"
    yield f"{each.change:9} {each.release} ({where}), built by {each.publisher}, {size}"
    attested = (each.publisher,) if each.publisher == PUBLISHER and not each.unattested else ()
    yield from _indented(
        {
            "it did not wait": filter(None, [each.because]),
            "its builder is not proven": filter(None, [each.unattested]),
            "its builder is attested": attested,
            "it was not measured": filter(None, [each.unmeasured]),
            "compared with": filter(None, [each.compared_with]),
            "gained": each.gained,
            "LOST": each.lost,
            "archives on": each.hosts,
        }
    )
    yield from (f"          needs: {line}" for line in each.requires)
    yield from (f"{ALARM}{each.release}: {line}" for line in each.alarming)


def _indented(lists: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Show each list that is not empty, in a line below its release or role."""
    for word, names in lists.items():
        if told := ", ".join(names):
            yield f"          {word}: {told}"
