"""The program ``tsuku-publish``: its commands, and the packages that it needs."""

import logging
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from tsuku_llm.cli import entry, program
from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_publish.cli import data, feed, own, pack, repository, review, signing
from tsuku_publish.errors import MissingExtra, PublishError

PROGRAM = "tsuku-publish"
EXTRA = "pip install 'tsuku-llm[publish]'"
NEEDED = ("elftools", "sigstore")
"""The packages of the extra: a plain install of the client has none of them."""

group = Group(
    PROGRAM,
    help="""Make, sign, publish and check a repository of builds that tsuku-llm installs.

    The data are in a folder with repository.toml: the current one, or --data FOLDER.
    docs/releases.md describes its files.""",
    params=[program.VERSION],
)
for command in (
    feed.feed,
    *(data.refresh, data.attest, data.build, data.revoke, data.withdraw, pack.pack),
    *(own.init, own.add, own.measure),
    *(review.review, review.promote),
    *(signing.sign, signing.resign, signing.rotate, signing.new_signer),
    *(repository.publish, repository.check, repository.secrets),
):
    group.add_command(command)


def main() -> None:
    """Run what ``sys.argv`` asks for, and exit with its code. This is the console's entry point."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told as the client does."""
    return entry.run(argv, invoke=_invoke)


def _invoke(argv: Sequence[str], console: Console) -> CommandResult:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"{PROGRAM} needs packages that are not installed: {', '.join(missing)}",
            hint=f"install them with: {EXTRA}",
        )
    # It warns each time that it works offline, which is what we ask it to do.
    logging.getLogger("sigstore").setLevel(logging.ERROR)
    try:
        return program.invoke(argv, console, group)
    except OSError as error:
        # A file that an argument names, or one of the data: no fault of this program.
        raise PublishError(
            f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}",
            hint="check that its folder exists, that you may use it, and that the disk is not full",
        ) from error
