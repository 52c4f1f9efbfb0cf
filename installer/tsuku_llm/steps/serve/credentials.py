"""The secrets in a server's arguments and variables, and how a systemd unit passes them on unseen.

Other users may be able to read a unit, and people copy and paste it. So secrets go through the
server's environment (``launch.plan.secret_arguments``). For an option without a variable, systemd
replaces an argument by a variable's value (systemd.service(5), "command lines").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.safe_text import Secret, has_secret
from tsuku_llm.instances.record import checked_name
from tsuku_llm.launch.plan.secret_arguments import VARIABLES, handed_over, parted

_OWN = re.compile(r"TSUKU_HOME|TSUKU_LLM_[A-Z_]+")


class Handover(NamedTuple):
    """The parts of a start: what a unit may show, and the secrets that it must not show.

    ``argv`` are the server's arguments, without secrets. None stands for the value of the variable
    ``TSUKU_UNIT_WORD_N``, where N is the argument's position. ``told`` are variables that the
    unit may set, ``secret`` those that belong into a file that only the user can read.
    """

    argv: tuple[str | None, ...]
    told: Mapping[str, str]
    secret: Mapping[str, Secret]

    @staticmethod
    def variable(place: int) -> str:
        """Return the name of the variable whose value replaces the secret argument at ``place``."""
        return f"TSUKU_UNIT_WORD_{place}"


def handover(argv: Sequence[str], environ: Mapping[str, str]) -> Handover:
    """Separate the secrets of a start from what may be shown.

    ``argv`` are the server's arguments. From the environment this takes our settings, and the
    variables from which llama.cpp reads keys.
    """
    own = {name: environ[name] for name in sorted(environ) if _OWN.fullmatch(name)}
    # A URL in our settings, for example a mirror's, may hold a password or a token.
    secret = {name: Secret(value) for name, value in own.items() if has_secret(value)}
    told = {name: value for name, value in own.items() if name not in secret}
    secret |= {name: Secret(environ[name]) for name in VARIABLES if environ.get(name)}
    moved = handed_over(argv)
    secret |= moved.secrets
    kept: list[str | None] = []
    for option, value in parted(moved.argv):
        if value is None:
            kept.append(option)
        else:
            kept += [option, None] if option else [None]
            secret[Handover.variable(len(kept) - 1)] = Secret(value)
    return Handover(tuple(kept), told, secret)


def keep_credentials(state: Path, name: str, secrets: Mapping[str, Secret], content: str) -> Path:
    """Write a unit's ``secrets`` into a file that only this user can read; return its path.

    Raises UsageError for characters that systemd drops: the server would start without its key.
    """
    for variable, value in secrets.items():
        if not value.reveal().isprintable():
            raise UsageError(
                f"{variable} has a character that systemd does not pass on",
                hint="take another key, or let the server read a file: --api-key-file FILE",
            )
    folder = state / "credentials"
    path = folder / f"{checked_name(name)}.env"
    # Close the folder before the file is in it: other users can never open the file.
    make_folder(folder, private=True)
    with disk_errors("keeping the credentials of a unit", folder):
        replace_file(path, content.encode("utf-8"), mode=0o600)
    return path
