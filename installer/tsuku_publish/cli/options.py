"""Options that several commands share, and the lines that they print as they work."""

import getpass
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import click

from tsuku_llm.cli import streams
from tsuku_llm.cli.console import Console
from tsuku_llm.errors import UsageError
from tsuku_llm.safe_text import printable
from tsuku_publish.errors import PublishError

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
DAY = click.DateTime(["%Y-%m-%d"])
TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])
TODAY = datetime.now(timezone.utc).strftime("%Y-%m-%d")
NOW = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

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
    default=NOW,
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
            raise PublishError(f"no answer: {question}") from None

    return ask


def question(console: Console, option: str, text: str) -> str:
    """Ask for what an option could have said. Raises ``UsageError`` if nobody answers."""
    answer = ""
    if console.can_ask:
        console.progress.hide()
        console.tell(text)
        answer = sys.stdin.readline().strip()
    if not answer:
        raise UsageError(f"{option} is not given", hint=f"add {option}: {text}")
    return answer


def tell(console: Console, line: str) -> None:
    """Print a line at once, unless a program gets the whole answer as JSON."""
    if not console.json:
        streams.say(sys.stdout, f"{printable(line)}\n")
