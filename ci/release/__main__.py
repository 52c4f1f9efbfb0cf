"""The commands of the release tool."""

import logging
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import click

from ci.release.errors import ReleaseError
from ci.release.folder import Folder, days_left, too_old, verify, write
from ci.release.plan import DATA, load_plan, release_files

MANIFESTS = Path(__file__).parents[2] / "manifests"
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
data_option = click.option(
    "--data", type=FOLDER, default=DATA, help="Where rules, facts and the plan lie."
)

root_option = click.option(
    "--trusted-root", type=FILE, help="Sigstore's trusted root; sigstore-python's without it."
)


@click.group()
def cli() -> None:
    """From what upstream published to the signed repository in manifests/."""


@cli.command()
@data_option
@click.argument("tag")
@click.option("--json", "answer", type=FILE, help="The hosting service's answer, stored.")
@click.option("--download", is_flag=True, help="Read every archive: its files and its needs.")
@click.option("--from", "folder", type=FOLDER, help="Where the archives lie already.")
@click.option("--unlisted", metavar="REASON", help="Why no archive of it can be read.")
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
    from ci.release.refresh import Refresh  # noqa: PLC0415

    work = Refresh(data, os.environ, click.echo)
    work.record(tag, answer.read_bytes() if answer else None, unlisted)
    if download or folder:
        work.read_archives(tag, folder)


@cli.command()
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
    from ci.release.attest import Attest  # noqa: PLC0415

    work = Attest(data, os.environ)
    if unattested is None:
        number = work.prove(tag, [path.read_bytes() for path in bundles], trusted_root)
        click.echo(f"{tag}: {number} archives come from {work.origin.repository}")
    else:
        work.excuse(tag, unattested)
        click.echo(f"{tag}: not attested, and its release file says so")


@cli.command()
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


@cli.command()
@data_option
@root_option
@click.option("--into", type=FOLDER, default=MANIFESTS, help="Where the repository lies.")
def sign(data: Path, trusted_root: Path | None, into: Path) -> None:
    """Build and sign the repository with the signers that TSUKU_LLM_SIGNERS names."""
    from ci.release.signers import load_signers  # noqa: PLC0415
    from ci.release.signing import sign as sign_files  # noqa: PLC0415

    plan = load_plan(data)
    files = sign_files(plan, release_files(plan, data, trusted_root), load_signers())
    write(into, files)
    click.echo(f"{into}: {len(files)} files, signed and checked")


@cli.command()
@click.option("--folder", type=FOLDER, default=MANIFESTS, help="Where the repository lies.")
def check(folder: Path) -> None:
    """Verify the repository as a client would, and say how long each role holds.

    Ends with 1 when a role must be signed anew.
    """
    copy = Folder(folder)
    root = copy.read("metadata/1.root.json")
    if root is None:
        raise ReleaseError(f"{folder} has no root")
    repository = verify(copy, root)
    left = days_left(repository, datetime.now(timezone.utc))
    for role, days in left.items():
        state = repository.roles[role]
        click.echo(f"{role:9} version {state.version}, {days} days left ({state.expires:%Y-%m-%d})")
    late = too_old(left, load_plan())
    if late:
        raise ReleaseError(f"sign anew: {', '.join(late)}")


def main() -> None:
    """Run a command; what stops it is one line."""
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it works offline
    try:
        cli(prog_name="python -m ci.release")
    except ReleaseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
