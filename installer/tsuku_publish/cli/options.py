"""Options that several commands share, and the lines that they print as they work."""

import getpass
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click
from click.core import ParameterSource

from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.safe_text import printable
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files.plan import Plan
from tsuku_publish.release_files.sightings import observe
from tsuku_publish.repository.checking import FIRST_ROOT, verify
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.signing.published import ServedState, published_state

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
DAY = click.DateTime(["%Y-%m-%d"])
TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])

data_option = click.option(
    "--data",
    type=FOLDER,
    default=".",
    envvar="TSUKU_PUBLISH_DATA",
    show_envvar=True,
    metavar="FOLDER",
    help="The folder of repository.toml, rules and facts; the current one.",
)
root_option = click.option(
    "--trusted-root",
    type=FILE,
    metavar="FILE",
    help="Sigstore's trusted root; without it, the one of sigstore-python.",
)
into_option = click.option(
    "--into",
    type=FOLDER,
    metavar="FOLDER",
    help="The signed repository; without it, the one that repository.toml names.",
)
gather_option = click.option(
    "--gather",
    type=FOLDER,
    metavar="FOLDER",
    help="Where the signatures of several holders are collected.",
)
issued_option = click.option(
    "--issued",
    type=TIME,
    metavar="DAY",
    default=clock.stamp,
    help="The day of new versions, or a time in UTC; now.",
)
channel_option = click.option(
    "--channel",
    metavar="NAME",
    help="Only the next state of this channel, which has its own signers.",
)
drop_option = click.option(
    "--drop",
    "dropping",
    metavar="TAG",
    multiple=True,
    help="A revoked release to forget; its users may start it again.",
)

published_option = click.option(
    "--published",
    "place",
    metavar="PLACE",
    help="Where clients look; without it, as repository.toml says.",
)
offline_option = click.option("--offline", is_flag=True, help="Do not ask there what is published.")
yes_option = click.option("--yes", is_flag=True, help="Sign without a question.")


def today() -> str:
    """Return the present day in UTC, as a document has it: ``YYYY-MM-DD``."""
    return clock.now().strftime("%Y-%m-%d")


def asking(console: Console) -> Callable[[str], str | None]:
    """Return what asks for a passphrase, without showing the answer; None if nobody can answer."""

    def ask(question: str) -> str | None:
        if not console.can_ask:
            return None
        console.progress.hide()
        try:
            # To the terminal, and not to stdout, which may be a file.
            return getpass.getpass(f"{printable(question)}: ")
        except EOFError:
            streams.control(sys.stderr, "\n")  # the error begins on its own line
            raise PublishError(f"no answer: {question}") from None
        except KeyboardInterrupt:
            streams.control(sys.stderr, "\n")
            raise

    return ask


def question(console: Console, option: str, text: str) -> str:
    """Ask for what an option could have said. Raises ``UsageError`` if nobody answers."""
    answer = ""
    if console.can_ask:
        console.progress.hide()
        console.tell(text)
        try:
            answer = sys.stdin.readline().strip()
        except KeyboardInterrupt:
            streams.control(sys.stderr, "\n")  # the terminal has written ^C
            raise
    if not answer:
        raise UsageError(f"{option} is not given", hint=f"add {option}: {text}")
    return answer


def seen_at(option: str) -> datetime | None:
    """Return the time at which something is seen; None if the option says another than now."""
    given = click.get_current_context().get_parameter_source(option)
    return clock.now() if given is ParameterSource.DEFAULT else None


def published_at(
    place: str | None, into: Path, plan: Plan, now: datetime | None, *, offline: bool
) -> ServedState | None:
    """Return what clients are served; None if that is not known or not asked.

    It records since when each channel has its releases, also those of the repository in ``into``
    if that is all that is known. ``now`` is None for a time that is not the clock's. Raises
    ``PublishError``.
    """
    asked = "" if offline else place or plan.published
    found = published_state(asked, into) if asked else None
    if now and found:
        observe(found.repository, found.first, now)
    elif now and not asked and (root := RepositoryFolder(into).read(FIRST_ROOT)):
        observe(verify(RepositoryFolder(into), root), root, now)
    return found


def tell(console: Console, line: str) -> None:
    """Print a line at once, unless a program gets the whole answer as JSON."""
    if not console.json:
        streams.say(sys.stdout, f"{console.style(sys.stdout).shaped(printable(line))}\n")
