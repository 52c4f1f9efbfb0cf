"""The command ``pack``: a build of one's own becomes archives of a release file."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.text import size, table
from tsuku_publish.packing.pack import PackReport, Place
from tsuku_publish.packing.pack import pack as pack_build

ANY = click.Path(path_type=Path)


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
    return CommandResult(report, _lines(report))


def _lines(report: PackReport) -> tuple[str, ...]:
    """Return the archives for people, and what to do with them."""
    rows = [
        (
            each.file.name if each.file else each.artifact.url,
            size(each.artifact.size),
            "written" if each.written else "there already",
        )
        for each in report.archives
    ]
    count = f"{len(rows)} archives" if len(rows) > 1 else "1 archive"
    where = f"{report.release_file}: {report.variant} for {report.platform}"
    then = "sign it, then publish it"
    if report.not_packed:
        then = f"still to pack: {', '.join(report.not_packed)}"
    return (*table(rows, indent=0), f"{where} consists of {count}; {then}")
