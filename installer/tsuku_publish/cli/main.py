"""The program ``tsuku-publish``: its commands."""

import logging
from collections.abc import Sequence

from tsuku_llm.cli import entry, program
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import StoreError
from tsuku_publish.cli import build, data, feed, own, repository, review, signing, upstream
from tsuku_publish.errors import PublishError

PROGRAM = "tsuku-publish"

_HINTS = {
    "no-space": "free some space there, then run it again",
    "not-writable": "make that folder yours and writable, or name another one",
}

group = Group(
    PROGRAM,
    help="""Make, sign, publish and check a repository of builds that tsuku-llm installs.

    The data are in a folder with repository.toml: the current one, or --data FOLDER.
    docs/releases.md describes its files.""",
    params=[program.VERSION],
)
for command in (
    *(feed.feed, upstream.upstream),
    *(data.refresh, data.attest, data.revoke, data.withdraw),
    *(own.pack, own.init, build.build, own.add, own.measure),
    *(review.review, review.promote),
    *(signing.sign, signing.resign, signing.rotate, signing.new_signer),
    *(repository.publish, repository.check, repository.secrets),
):
    group.add_command(command)


def run(argv: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told as the client does."""
    return entry.run(argv, invoke=_invoke)


def _invoke(argv: Sequence[str], console: Console) -> CommandResult:
    # It warns each time that it works offline, which is what we ask it to do.
    logging.getLogger("sigstore").setLevel(logging.ERROR)
    try:
        return program.invoke(argv, console, group)
    except StoreError as error:
        # The client's hints name its own folder, and these folders were named by the arguments.
        error.hint = _HINTS.get(error.slug, error.hint)
        raise
    except OSError as error:
        # A file that an argument names, or one of the data: no fault of this program.
        raise PublishError(
            f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}",
            hint="check that its folder exists, that you may use it, and that the disk is not full",
        ) from error
