"""The facts of one source as a value, as a file of the data, and what differs between two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading
from tsuku_publish.upstream.source.arguments import Argument, arguments
from tsuku_publish.upstream.source.builds import assets
from tsuku_publish.upstream.source.marked import Fact
from tsuku_publish.upstream.source.publishing import publishing
from tsuku_publish.upstream.source.tree import SourceTree

FOLDER = "sources"
"""Where the data keep the facts: ``facts/sources/b11434.json``."""
_TAG = re.compile(r"b([0-9]+)")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What the source at a tag says; ``also`` are other tags whose sources say the same.

    ``assets`` has the facts of each file of a release, by its name with ``{tag}``; ``arguments``
    are those of the server.
    """

    tag: str
    also: tuple[str, ...]
    publishing: Mapping[str, Fact]
    assets: Mapping[str, Mapping[str, Fact]]
    arguments: tuple[Argument, ...]

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag whose source was read, the oldest first."""
        return tuple(sorted({self.tag, *self.also}, key=number_of))


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two sources say differently; None on the side that does not have it.

    ``about`` is an asset, "publishing" or an argument's name; ``at`` is its line in the newer
    source, or in the older one if the newer does not have it.
    """

    about: str
    what: str
    before: str | None
    after: str | None
    at: str

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.about}: new {self.what} {self.after} ({self.at})"
        if self.after is None:
            return f"{self.about}: {self.what} {self.before} is gone ({self.at})"
        return f"{self.about}: {self.what} {self.before} -> {self.after} ({self.at})"


def number_of(tag: str) -> int:
    """Return the number of a tag such as "b11434". Raises ``PublishError``."""
    match = _TAG.fullmatch(tag)
    if match is None:
        raise PublishError(f"{tag} is not the tag of a build of upstream, such as b11434")
    return int(match[1])


def facts_of(source: SourceTree, tag: str) -> SourceFacts:
    """Read a source. Raises ``UnreadableSource`` with the line of what cannot be read."""
    told = publishing(source)
    server = tuple(each for each in arguments(source) if each.is_for("server"))
    return SourceFacts(tag, (), told.facts, assets(told), server)


def differences(before: SourceFacts, after: SourceFacts) -> tuple[Difference, ...]:
    """Return what the newer source says differently, in the order of the assets' names."""
    found = [*_of_facts("publishing", before.publishing, after.publishing)]
    groups = (
        ("asset of the job", "job", before.assets, after.assets),
        ("argument", "names", _by_name(before.arguments), _by_name(after.arguments)),
    )
    for what, key, olds, news in groups:
        for name in sorted({*olds, *news}):
            old, new = olds.get(name), news.get(name)
            if old is None or new is None:
                # One side does not have it: of the other one, a single fact is enough.
                old, new = ({what: each[key]} if each else {} for each in (old, new))
            found += _of_facts(name, old, new)
    return tuple(found)


def _by_name(arguments: Iterable[Argument]) -> dict[str, dict[str, Fact]]:
    """Return the fields of arguments as facts, by their last name."""
    names = [each.name for each in fields(Argument) if each.name != "at"]
    return {
        each.names[-1]: {name: Fact(getattr(each, name), each.at) for name in names}
        for each in arguments
    }


def _of_facts(
    about: str, before: Mapping[str, Fact], after: Mapping[str, Fact]
) -> Iterator[Difference]:
    for what in dict.fromkeys([*before, *after]):
        old, new = before.get(what), after.get(what)
        if old is None or new is None or old.value != new.value:
            place = new or old
            yield Difference(about, what, *_sides(old, new), place.at if place else "")


def _sides(old: Fact | None, new: Fact | None) -> tuple[str | None, str | None]:
    """Return both values; of two lists only what one has and the other has not."""
    if old and new and isinstance(old.value, tuple) and isinstance(new.value, tuple):
        gone = tuple(each for each in old.value if each not in new.value)
        made = tuple(each for each in new.value if each not in old.value)
        if gone or made:  # else their order differs
            return _told(gone or None), _told(made or None)
    return _told(old and old.value), _told(new and new.value)


def _told(value: Any) -> str | None:
    return ", ".join(value) if isinstance(value, tuple) else None if value is None else str(value)


def text_of(facts: SourceFacts) -> str:
    """Return the file of a source's facts: one line for each, so that two can be compared."""
    lines = [
        f'"tag": {json.dumps(facts.tag)},\n"also": {json.dumps(facts.also)},',
        f'"publishing": {_table(facts.publishing)},',
        '"assets": {',
        ",\n".join(f'"{name}": {_table(each)}' for name, each in facts.assets.items()),
        '},\n"arguments": [',
        ",\n".join(json.dumps(asdict(each)) for each in facts.arguments),
        "]",
    ]
    return "{\n" + "\n".join(lines) + "\n}\n"


def record(folder: Path, found: SourceFacts) -> Path:
    """Write the facts of a source into the data; return the file.

    A source that says the same as a recorded one only adds its tag to that file. Raises
    ``PublishError``.
    """
    for same in load_sources(folder):
        if found.tag in same.tags or not differences(same, found):
            also = tuple(each for each in (*same.also, found.tag) if each != same.tag)
            # Its own lines are those of the source that was read first.
            kept = found if found.tag == same.tag else same
            found = replace(kept, also=tuple(sorted({*also}, key=number_of)))
            break
    make_folder(folder / FOLDER)
    path = folder / FOLDER / f"{found.tag}.json"
    replace_file(path, text_of(found).encode())
    return path


def _table(facts: Mapping[str, Fact]) -> str:
    lines = (f" {json.dumps(name)}: {json.dumps(asdict(fact))}" for name, fact in facts.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def load_sources(facts: Path) -> tuple[SourceFacts, ...]:
    """Read the facts of all sources, the oldest first. Raises ``PublishError``."""
    found = []
    for path in sorted((facts / FOLDER).glob("*.json")):
        with reading(path):
            raw = parse_object(read_foreign(path, LARGEST_FILE))
            found.append(msgspec.convert(raw, SourceFacts))
    return tuple(sorted(found, key=lambda each: number_of(each.tag)))


def sources_for(tag: str, sources: tuple[SourceFacts, ...]) -> tuple[SourceFacts, ...]:
    """Return the facts that hold for a release: one, or two for a tag between two sources.

    Before the oldest source the oldest one holds, after the newest one the newest.
    """
    if not sources:
        return ()
    number = number_of(tag)
    older = [each for each in sources if number_of(each.tags[0]) <= number]
    newer = [each for each in sources if number_of(each.tags[-1]) >= number]
    if not older or not newer:
        return ((older or sources)[-1],) if older else (sources[0],)
    return (older[-1],) if older[-1] is newer[0] else (older[-1], newer[0])
