"""Commands that publish a signed repository, and that check it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

import click

from tsuku_llm.catalog.revocations import parse
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import UsageError
from tsuku_publish.cli.options import DAY, FOLDER, data_option, tell
from tsuku_publish.errors import PublishError
from tsuku_publish.holders.signers import VARIABLE, load_secrets
from tsuku_publish.release_files.plan import TARGETS, Plan, load_plan
from tsuku_publish.release_files.sightings import observe
from tsuku_publish.repository.checking import (
    compare,
    days_left,
    first_root,
    late_roles,
    verify,
    walk,
)
from tsuku_publish.repository.copies import copy_at
from tsuku_publish.repository.folder import publish as publish_folder
from tsuku_publish.repository.folder import require_own
from tsuku_publish.repository.wheel import write_wheel
from tsuku_publish.secrets import built, files_below, history, search
from tsuku_publish.signing.ceremony import require_own_keys


@click.command(cls=Command)
@data_option
@click.argument("target", type=FOLDER)
@click.option(
    "--from",
    "source",
    type=FOLDER,
    metavar="FOLDER",
    help="The signed repository; without it, the one that repository.toml names.",
)
@click.option(
    "--wheel",
    type=FOLDER,
    metavar="FOLDER",
    help="Also write a wheel of it there, to upload to a package index.",
)
@click.option(
    "--package",
    metavar="NAME",
    help="The name of the wheel's package; clients name it as pkg:pypi/NAME.",
)
def publish(
    *, data: Path, target: Path, source: Path | None, wheel: Path | None, package: str | None
) -> CommandResult:
    """Copy the signed repository to a web server's folder.

    Clients see the old state or the new one, and never a mix.
    """
    if (wheel is None) != (package is None):
        raise UsageError(
            "--wheel and --package belong together",
            hint="choose a name that is yours on the package index: --package NAME",
        )
    if source is None:
        plan = load_plan(data)
        source = plan.signed
        require_own(data)
        require_own_keys(plan, {}, source)
    require_own(source)
    repository = publish_folder(source, target)
    versions = {role: state.version for role, state in repository.roles.items()}
    lines = [f"{target}: timestamp {versions['timestamp']} is served"]
    written = None
    if wheel is not None and package is not None:
        written = write_wheel(target, package, wheel)
        lines.append(f"{written}: upload it to the package index")
    found = {"target": target, "versions": versions, "wheel": written}
    return CommandResult(found, tuple(lines))


@click.command(cls=Command)
@data_option
@click.argument("place", required=False)
@click.option("--published", metavar="PLACE", help="Compare with what is published there.")
@click.option("--on", "day", type=DAY, metavar="DAY", help="As if it were that day; today.")
@click.pass_obj
def check(
    console: Console, *, data: Path, place: str | None, published: str | None, day: datetime | None
) -> CommandResult:
    """Verify a repository as a client would.

    It prints how long each role is valid. PLACE is a folder, a wheel, a URL or pkg:pypi/NAME;
    without it, the folder that repository.toml names. Ends with 1 if a role must be signed again,
    if a client of any root would be stuck, or if a package would refuse what is published. Without
    --on it records what channels with their own signers have now, for promote.
    """
    plan, seen = load_plan(data), clock.now()
    now = (day or seen.replace(hour=0, minute=0, second=0)).replace(tzinfo=timezone.utc)
    copy = copy_at(place or str(plan.signed))
    repository = verify(copy, first_root(copy))
    roles, left = repository.roles, days_left(repository, now)
    # Each line is printed at once: what was found before an error is worth reading.
    for role, days in left.items():
        until = f"{roles[role].expires:%Y-%m-%d}"
        tell(console, f"{role:9} version {roles[role].version}, {days} days left ({until})")
    revoked = parse("", repository.revoked)
    for each in revoked:
        withdrawn = f", withdrawn on {each.withdrawn}" if each.withdrawn else ""
        tell(console, f"revoked: {each.release} on {each.date}{withdrawn}: {each.reason}")
    newest = walk(copy)
    tell(console, f"every root leads to root {newest}")
    late = late_roles(copy, repository, plan.warn, now)
    found: dict[str, object] = {
        "roles": {
            role: {"number": state.version, "expires": f"{state.expires:%Y-%m-%d}", "days": days}
            for (role, state), days in zip(roles.items(), left.values(), strict=True)
        },
        "revoked": [each for each in revoked if not each.withdrawn],
        "withdrawn": {each.release: each.withdrawn for each in revoked if each.withdrawn},
        "root": newest,
        "late": late,
        "published": None,
    }
    if published:
        other = copy_at(published)
        versions = {}
        for role, ours, theirs in compare(copy, other):
            versions[role] = theirs
            tell(console, f"{role:9} {ours} embedded, {theirs} published")
        newest = walk(other)
        tell(console, f"every published root leads to root {newest}")
        found["published"] = {"versions": versions, "root": newest}
    if day is None:
        seen_at = copy_at(published) if published else copy
        observe(verify(seen_at, root := first_root(seen_at)), root, seen)
    if late:
        tasks = dict.fromkeys(_renewed_by(each.split()[0], plan) for each in late)
        hint = f"where TSUKU_LLM_SIGNERS names the signers' files, run: {', then '.join(tasks)}"
        return _failed(found, f"sign again: {', '.join(late)}", hint)
    return CommandResult(found)


@click.command(cls=Command)
@click.option(
    "--repository",
    type=FOLDER,
    metavar="FOLDER",
    default=".",
    help="Whose files and history to search; the current folder.",
)
@click.option("--build", "build_it", is_flag=True, help="Build wheel and sdist, and search them.")
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.pass_obj
def secrets(
    console: Console, *, repository: Path, build_it: bool, places: tuple[Path, ...]
) -> CommandResult:
    """Search for leaked private keys.

    It reads the files of a folder, its git history, and PLACES (logs, builds). It looks for the
    keys of the signers in TSUKU_LLM_SIGNERS in any form, and for everybody's in their usual forms.
    Ends with 1 if one is found.
    """
    if not repository.is_dir():
        raise UsageError(
            f"{repository} is not a folder", hint="name one to search: --repository FOLDER"
        )
    if build_it and not (repository / "pyproject.toml").exists():
        raise UsageError(
            f"{repository} has no pyproject.toml: no package can be built of it",
            hint="leave out --build, or name the source of a package: --repository FOLDER",
        )
    known = load_secrets() if os.environ.get(VARIABLE) else {}
    contents = [files_below(place) for place in (repository, *places)]
    contents += [history(repository)] if (repository / ".git").exists() else []
    contents += [built(repository)] if build_it else []
    found, number = search(chain.from_iterable(contents), known)
    answer = {"found": found, "searched": number}
    for finding in found:
        tell(console, f"{finding.signer}: {finding.place}")
    if found:
        return _failed(answer, "a private key is where it must not be: replace that signer")
    line = f"no private key, and none of {len(known)} signers, is in {number} files and objects"
    if not known:
        line += f"; {VARIABLE} names no signers"
    return CommandResult(answer, (line,))


def _renewed_by(role: str, plan: Plan) -> str:
    """Return the command that signs a role again."""
    if role == "root":  # a published root stays as it is; only another one has a later day
        return f"tsuku-publish rotate root={','.join(plan.roles[role].signers)}"
    return f"tsuku-publish {'sign --raise' if role == TARGETS else 'resign'}"


def _failed(data: Mapping[str, object], message: str, hint: str = "") -> CommandResult:
    """Return an answer that has what was found, and ends as an error does."""
    error = PublishError(message, hint=hint)
    return CommandResult(data, exit_code=error.exit_code, failure=ReportedError.of(error))
