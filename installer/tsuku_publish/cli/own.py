"""The commands of a repository of one's own: ``init``, ``add``, ``pack`` and ``measure``."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import size, table
from tsuku_llm.ground.errors import UsageError
from tsuku_publish.cli.options import (
    DAY,
    FOLDER,
    asking,
    data_option,
    issued_option,
    question,
    today,
)
from tsuku_publish.holders.keys import load_public_keys
from tsuku_publish.holders.passphrases import Passphrases, nobody
from tsuku_publish.packing.adding import NewVariant
from tsuku_publish.packing.adding import add as add_builds
from tsuku_publish.packing.measuring import MeasuredBuild
from tsuku_publish.packing.measuring import measure as measure_build
from tsuku_publish.packing.pack import Place
from tsuku_publish.packing.pack import pack as pack_build
from tsuku_publish.release_files.plan import load_plan, save_channel
from tsuku_publish.release_files.releases import known_document
from tsuku_publish.release_files.revoked import revoked_twins
from tsuku_publish.repository.folder import locked
from tsuku_publish.signing.founding import Founders, found, make_keys, require_new

ANY = click.Path(path_type=Path)

_ARCHIVES = "/srv/www/llm/archives --url https://host.example/llm/archives/"
"""The example's folder and address of archives, as docs/releases.md has them."""


@click.command(cls=Command)
@click.argument("folder", type=FOLDER)
@click.option("--publisher", metavar="TEXT", help="Who builds the releases; users see it.")
@click.option("--root", metavar="NAMES", help="Who may replace signers: anna,ben,chris.")
@click.option("--targets", metavar="NAMES", help="Who signs releases; the same people.")
@click.option("--threshold", type=int, metavar="N", help="How many of them; more than half.")
@click.option(
    "--online", metavar="NAME", default="host", help="The machine's signer of every week; host."
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Lines that new-signer printed elsewhere.",
)
@click.option(
    "--signers", type=FOLDER, metavar="FOLDER", help="Where other keys are made; FOLDER-signers."
)
@click.option("--unencrypted", is_flag=True, help="Make keys without passphrases.")
@issued_option
@click.pass_obj
def init(
    console: Console,
    *,
    folder: Path,
    publisher: str | None,
    root: str | None,
    targets: str | None,
    threshold: int | None,
    online: str,
    keys: tuple[Path, ...],
    signers: Path | None,
    unencrypted: bool,
    issued: datetime,
) -> CommandResult:
    """Make a new repository of your own builds.

    FOLDER gets repository.toml. On a terminal it asks for what no option says. Signers that --keys
    does not name are made here. Their keys are encrypted with passphrases that are asked for, or
    that TSUKU_LLM_PASSPHRASE_FILE or TSUKU_LLM_PASSPHRASE gives.
    """
    require_new(folder)
    publisher = publisher or question(console, "--publisher", "who builds the releases?")
    people = _names(root or question(console, "--root", "who signs? (anna,ben,chris)"))
    founders = Founders(
        root=people,
        targets=_names(targets) if targets else people,
        online=online,
        threshold=len(people) // 2 + 1 if threshold is None else threshold,
    )
    founders.require_sound()
    known = load_public_keys(keys)
    missing = [name for name in founders.names if name not in known]
    beside = signers or folder.absolute().with_name(f"{folder.absolute().name}-signers")
    secrets = Passphrases(os.environ, asking(console))
    made = make_keys(missing, beside, nobody if unencrypted else secrets.new)
    path = found(folder, founders, known | made, publisher, issued.date())
    answer = {
        "file": path,
        "signers": beside if made else None,
        "made": tuple(made),
        "threshold": founders.threshold,
    }
    people_text = ", ".join(founders.root)
    lines = [f"{path}: {founders.threshold} of {people_text} sign, and {online} every week"]
    if made:
        lines.append(f"{beside}: the private keys of {', '.join(made)}; give each to its holder")
    where = shlex.quote(str(folder.absolute()))
    lines += [
        "next, type these lines with your builds, your web server's folder and its address:",
        f"  export TSUKU_PUBLISH_DATA={where} TSUKU_LLM_SIGNERS={shlex.quote(str(beside))}",
        f"  tsuku-publish add b1 --variant cpu=BUILD --into {_ARCHIVES}",
        "  tsuku-publish sign",
        "  tsuku-publish publish /srv/www/llm/repository",
    ]
    return CommandResult(answer, tuple(lines))


@click.command("add", cls=Command)
@data_option
@click.argument("release")
@click.option(
    "--variant",
    "variants",
    metavar="NAME=BUILD",
    multiple=True,
    required=True,
    help="A variant and its build: cpu=build/bin; also PLATFORM/NAME=BUILD.",
)
@click.option("--into", type=ANY, metavar="FOLDER", help="Where packed archives go.")
@click.option("--url", help="The https URL at which that folder is served.")
@click.option("--channel", metavar="NAME", help="Whose newest release it is; the first channel.")
@click.option("--publisher", metavar="TEXT", help="Who built it; as repository.toml says.")
@click.option(
    "--system-library",
    "system",
    metavar="NAME",
    multiple=True,
    help="A library that clients look for before the download.",
)
@click.option("--on", "day", type=DAY, metavar="DAY", default=today, help="Its date; today.")
@click.pass_obj
def add(
    console: Console,
    *,
    data: Path,
    release: str,
    variants: tuple[str, ...],
    into: Path | None,
    url: str | None,
    channel: str | None,
    publisher: str | None,
    system: tuple[str, ...],
    day: datetime,
) -> CommandResult:
    """Add builds to a release, which is made if it is new.

    Each BUILD is a folder, or a .tar.gz or .zip of upstream. What it needs of a machine is
    measured, and its files are packed as pack does it. BUILD may also be URL#sha256=DIGEST of an
    archive that users fetch from there; name a variant again for another archive of it. RELEASE is
    b and a number; its file is in releases/ of the data. Variants that are not named stay as they
    are.
    """
    if (into is None) != (url is None):
        raise UsageError(
            "--into and --url belong together", hint="give both, or neither if each build is a URL"
        )
    with locked(data):
        plan = load_plan(data)
        channel = channel or next(iter(plan.channels), "")
        if channel not in plan.channels:
            raise UsageError(
                f"there is no channel {channel}".rstrip(),
                facts=(f"channels: {', '.join(plan.channels) or 'none'}",),
                hint="name a channel of repository.toml: --channel NAME",
            )
        if any(each.release == release and not each.withdrawn for each in plan.revoked):
            # First: to measure and pack a build takes minutes.
            raise UsageError(
                f"{release} is revoked: clients refuse it, whatever builds it has",
                hint="take a higher number; if the revocation was a mistake: tsuku-publish "
                f"withdraw {release}",
            )
        added = add_builds(
            data / "releases",
            release,
            _variants(variants),
            Place(into, url) if into and url else None,
            publisher=publisher or plan.publisher,
            published=f"{day:%Y-%m-%d}",
            system=system,
        )
        if release not in plan.channels[channel]:
            save_channel(data, channel, (release, *plan.channels[channel]))
    for each in revoked_twins(known_document(release, data), plan.revoked):
        console.note(
            f"warning: {release} has builds of {each.release}, which is revoked: clients refuse "
            "the same builds under every name"
        )
    answer = {
        "release": release,
        "release_file": data / "releases" / f"{release}.json",
        "channel": channel,
        "variants": added,
    }
    rows = [
        (each.platform, each.variant, _archives(len(each.archives)), _needs(each.measured))
        for each in added
    ]
    kept = [
        f"{each.variant} for {each.platform} also keeps from the release file: "
        + ", ".join(f"{key} {value}" for key, value in each.kept.items())
        for each in added
        if each.kept
    ]
    then = f"{release} is in {channel}: sign it, then publish it"
    return CommandResult(answer, (*table(rows, indent=0), *kept, then))


@click.command("pack", cls=Command)
@click.argument("build", type=ANY)
@click.argument("release", type=ANY)
@click.option(
    "--variant", metavar="NAME", required=True, help="Which variant of the release it is."
)
@click.option("--platform", metavar="NAME", help="For which platform, if several have the variant.")
@click.option("--into", type=ANY, metavar="FOLDER", required=True, help="Where the archives go.")
@click.option("--url", required=True, help="The https URL at which that folder is served.")
def pack(
    *, build: Path, release: Path, variant: str, platform: str | None, into: Path, url: str
) -> CommandResult:
    """Pack your own build, for small updates.

    Users then download only the files that changed.

    BUILD is a folder, or a .tar.gz or .zip of upstream. RELEASE is the release file, not yet
    signed, that says what the variant needs; the archives are entered there.
    """
    report = pack_build(build, release, Place(into, url), variant=variant, platform=platform)
    rows = [
        (
            each.file.name if each.file else each.artifact.url,
            size(each.artifact.size),
            "written" if each.written else "there already",
        )
        for each in report.archives
    ]
    where = f"{report.release_file}: {report.variant} for {report.platform}"
    then = "sign it, then publish it"
    if report.not_packed:
        then = f"still to pack: {', '.join(report.not_packed)}"
    line = f"{where} consists of {_archives(len(rows))}; {then}"
    return CommandResult(report, (*table(rows, indent=0), line))


@click.command("measure", cls=Command)
@click.argument("build", type=ANY)
def measure(*, build: Path) -> CommandResult:
    """Show what a build holds and what it needs.

    BUILD is a folder, or a .tar.gz or .zip of upstream. Nothing is recorded.
    """
    with tempfile.TemporaryDirectory(prefix="measure-") as aside:
        found = measure_build(build, Path(aside))
    rows = [
        ("files", f"{found.files} ({size(found.size)})"),
        ("server", found.server or "none, or several"),
        ("platform", found.platform or "not shown by the server"),
        ("backends", ", ".join(found.backends)),
        ("C library", c_library(found) or "-"),
    ]
    rows += [(FLOORS[name], floor) for name, floor in found.floors.items() if name in FLOORS]
    rows += [("x86-64 level", str(found.x86_64_level))] if found.x86_64_level else []
    if found.cuda:
        rows += [
            ("CUDA toolkit", found.cuda.toolkit or "not shown: no libcudart.so"),
            ("CUDA SASS", ", ".join(found.cuda.sass) or "none"),
            ("CUDA PTX", ", ".join(found.cuda.ptx) or "none"),
        ]
    rows += [("AMD GPUs", ", ".join(found.gfx))] if found.gfx else []
    rows += [("asked of machines", ", ".join(found.libraries))] if found.libraries else []
    rows += [("missing", ", ".join(found.missing))] if found.missing else []
    answer = {"build": build, "measured": found}
    return CommandResult(answer, table(rows, indent=0))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _variants(texts: Iterable[str]) -> tuple[NewVariant, ...]:
    """Return the variants in their order; one that is named again has another build."""
    found: dict[tuple[str | None, str], list[str]] = {}
    for text in texts:
        left, equals, build = text.partition("=")
        platform, slash, name = left.rpartition("/")
        if not (equals and name and build) or (slash and not platform):
            raise UsageError(
                f"{text} is no variant with its build",
                hint="write --variant cpu=build/bin, or --variant linux-amd64/cpu=build/bin",
            )
        found.setdefault((platform or None, name), []).append(build)
    return tuple(NewVariant(*named, tuple(builds)) for named, builds in found.items())


def _archives(count: int) -> str:
    return f"{count} archives" if count > 1 else "1 archive"


def _needs(measured: MeasuredBuild) -> str:
    found = [c_library(measured)] if c_library(measured) else []
    found += [f"{FLOORS[name]} {each}" for name, each in measured.floors.items() if name in FLOORS]
    found += measured.libraries
    if measured.cuda:
        found.append(f"CUDA {', '.join((*measured.cuda.sass, *measured.cuda.ptx))}")
    found += [", ".join(measured.gfx)] if measured.gfx else []
    return "; ".join(found)


def c_library(measured: MeasuredBuild) -> str:
    """Return the C library that a build needs, such as "glibc 2.34"; "" if it needs none."""
    floor = measured.floors.get("glibc")
    return "musl" if measured.musl else f"glibc {floor}" if floor else ""


FLOORS = {"libstdcxx": "libstdc++", "macos": "macOS", "vcruntime": "Visual C++ runtime"}
"""What people call the floors of a build beside its C library."""
