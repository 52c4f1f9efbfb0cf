"""The command ``upstream``: what upstream's source says, and what it says differently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_publish.cli.options import data_option
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.upstream.classify import disagreements, load_rules, require_rules
from tsuku_publish.upstream.source.facts import (
    SourceFacts,
    differences,
    facts_of,
    load_sources,
    record,
    sources_for,
)
from tsuku_publish.upstream.source.tree import open_source

_IN_JSON = ("packs", "copies", "condition", "runner", "container")
"""Facts that people compare and do not read: the answer in JSON and the recorded file have them."""


@click.command(cls=Command)
@data_option
@click.argument("place", type=click.Path(exists=True, path_type=Path), metavar="SOURCE")
@click.option("--tag", metavar="TAG", help="The build that it is of, if SOURCE does not tell it.")
@click.option(
    "--record", "keep", is_flag=True, help="Write the facts into the data, for the rules."
)
def upstream(*, data: Path, place: Path, tag: str | None, keep: bool) -> CommandResult:
    """Read in upstream's source what it builds, and show what changed.

    SOURCE is a tree of llama.cpp, or the archive of a source distribution. Each fact has its line.
    It is compared with the source before it, and with the rules.
    """
    load_plan(data)  # a folder without a sound plan is no repository
    require_rules(data)
    rules = load_rules(data)
    source = open_source(place)
    if source.tag and tag and source.tag != tag:
        raise UsageError(f"{place} is the source of {source.tag}, not of {tag}")
    tag = tag or source.tag
    if tag is None:
        raise UsageError(f"{place} does not tell its tag", hint="name it: --tag b11434")
    found = facts_of(source, tag)
    known = load_sources(data / "facts")
    changes = differences(sources_for(tag, known)[0], found) if known else ()
    contradictions = disagreements(found, rules)
    path = record(data / "facts", found) if keep else None
    lines = [*_lines(found), *(f"changed: {each}" for each in changes)]
    lines += [f"the rules: {each}" for each in contradictions]
    lines.append(
        f"{tag}: {len(found.assets)} assets, {len(found.arguments)} arguments of the server, "
        f"{len(changes)} changes, {len(contradictions)} differences to the rules"
    )
    answer = {
        "facts": found,
        "changes": changes,
        "disagreements": contradictions,
        "recorded": path,
    }
    return CommandResult(answer, tuple(lines))


def _lines(found: SourceFacts) -> Iterator[str]:
    for name, facts in {"publishing": found.publishing, **found.assets}.items():
        yield name
        for what, fact in facts.items():
            if what not in _IN_JSON:
                value = ", ".join(fact.value) if isinstance(fact.value, tuple) else fact.value
                yield f"  {what}: {value} ({fact.at})"
