"""The page of all errors: slugs, exit codes and order from the code, words from ``errors.toml``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tsuku_llm.ground.errors
import tsuku_publish.errors
from ci.reference.commands import MADE
from tsuku_llm.ground.errors import TsukuError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = Path(__file__).with_name("errors.toml")

ABOUT = """\
# Errors: cause and cure

An error is one line `error[slug]: what happened`, then facts, then a hint. The hint is made for your machine: follow it first. This page has what is true of each slug everywhere. With `--json` the slug is `error.code`. Slugs and exit codes are stable, the words are not.
"""
PROBLEMS = """\
## Problems of the machine

`explain`, `backends` and `doctor` name them, each with its fix; with `--json` in `problems`, as `slug`.

| slug | cause | cure |
|---|---|---|"""
REASONS = """\
## Reasons against a variant

`explain` and `backends` show them as words; with `--json` each of `variants` has `reason.code`. It may also be the slug of a problem above, if that is what keeps the driver from showing a GPU.

| code | meaning | what changes it |
|---|---|---|"""


def words() -> dict[str, Any]:
    """Return what people wrote: headings, errors, problems and reasons."""
    return tomllib.loads(WORDS.read_text("utf-8"))


def kinds() -> dict[str, type[TsukuError]]:
    """Return the class of each slug, in the order of the source."""
    modules = (tsuku_llm.ground.errors, tsuku_publish.errors)
    values = [value for module in modules for value in vars(module).values()]
    found = [each for each in values if isinstance(each, type) and issubclass(each, TsukuError)]
    return {error.slug: error for error in found}


def page() -> str:
    """Return the page: each error under its exit code, then the problems and the reasons."""
    told = words()
    parts = [MADE, ABOUT]
    client = {slug: kind for slug, kind in kinds().items() if not _is_publishers(kind)}
    for code in sorted({kind.exit_code for kind in client.values()}):
        parts.append(f"## Exit code {code}: {told['headings'][str(code)]}\n")
        parts += [f"{told['about'][str(code)]}\n"] if str(code) in told["about"] else []
        slugs = [slug for slug, kind in client.items() if kind.exit_code == code]
        parts += [part for slug in slugs for part in _error(slug, told)]
    parts.append("## The publisher's program: exit code 1\n")
    parts += [part for slug in kinds() if slug not in client for part in _error(slug, told)]
    for heading, name in ((PROBLEMS, "problems"), (REASONS, "reasons")):
        rows = (f"| `{slug}` | {' | '.join(cells)} |" for slug, cells in told[name].items())
        parts += [heading, *rows, ""]
    return "\n".join(parts)


def _is_publishers(kind: type[TsukuError]) -> bool:
    return kind.__module__ == tsuku_publish.errors.__name__


def _error(slug: str, told: dict[str, Any]) -> Iterator[str]:
    yield f"### {slug}\n"
    yield f"Cause: {told['errors'][slug]['cause']}\n\nCure: {told['errors'][slug]['cure']}\n"
