"""Commands that record facts, and show the release files made of them."""

import os
from pathlib import Path

import click

from ci.release.attest import Attest
from ci.release.commands.options import FILE, FOLDER, data_option, root_option
from ci.release.plan import load_plan, release_files
from ci.release.refresh import Refresh


@click.command()
@data_option
@click.argument("tag")
@click.option("--json", "answer", type=FILE, help="The hosting service's answer, stored.")
@click.option("--download", is_flag=True, help="Download each archive; read what it has and needs.")
@click.option("--from", "folder", type=FOLDER, help="The folder that has the archives already.")
@click.option("--unlisted", metavar="REASON", help="Why none of its archives can be read.")
def refresh(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    tag: str,
    answer: Path | None,
    download: bool,
    folder: Path | None,
    unlisted: str | None,
) -> None:
    """Record what upstream published under a tag, in facts/."""
    work = Refresh(data, os.environ, click.echo)
    work.record(tag, answer.read_bytes() if answer else None, unlisted)
    if download or folder:
        work.read_archives(tag, folder)


@click.command()
@data_option
@root_option
@click.argument("tag")
@click.option("--bundle", "bundles", type=FILE, multiple=True, help="Attestations, stored.")
@click.option("--unattested", metavar="REASON", help="Why its origin cannot be verified.")
def attest(
    *,
    data: Path,
    trusted_root: Path | None,
    tag: str,
    bundles: tuple[Path, ...],
    unattested: str | None,
) -> None:
    """Verify offline who built a release's archives, and record the proofs in facts/."""
    work = Attest(data, os.environ)
    if unattested is None:
        number = work.prove(tag, [path.read_bytes() for path in bundles], trusted_root)
        click.echo(f"{tag}: {number} archives come from {work.origin.repository}")
    else:
        work.excuse(tag, unattested)
        click.echo(f"{tag}: not attested, and its release file says so")


@click.command()
@data_option
@root_option
@click.argument("into", type=FOLDER)
def build(data: Path, trusted_root: Path | None, into: Path) -> None:
    """Write the unsigned release files of every channel into a folder, for review."""
    for release in release_files(load_plan(data), data, trusted_root):
        path = into / release.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(release.data)
        click.echo(f"{release.path}  {', '.join(release.custom['channels'])}")
