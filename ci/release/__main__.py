"""The command line of the release tool."""

import logging
import sys
from collections.abc import Sequence

import click

from ci.release.commands import facts, repository, revoked, signatures
from ci.release.errors import ReleaseError
from tsuku_llm.errors import TsukuError


@click.group()
def cli() -> None:
    """From what upstream published to the signed repository in manifests/."""


for command in (
    *(facts.refresh, facts.attest, facts.build, revoked.revoke, revoked.withdraw),
    *(signatures.sign, signatures.resign, signatures.rotate, signatures.new_signer),
    *(repository.publish, repository.check, repository.secrets),
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error that stops it is printed as one line."""
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it works offline
    try:
        cli(arguments, prog_name="python -m ci.release")
    except (ReleaseError, TsukuError, OSError) as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(1)


def _one_line(error: Exception) -> str:
    facts = error.facts if isinstance(error, TsukuError) else ()
    # Messages of other libraries may have several lines.
    return " ".join("; ".join((str(error), *facts)).split())


if __name__ == "__main__":
    main()
