"""The secrets in a server's arguments and variables, and how a systemd unit passes them on unseen.

Other users may be able to read a unit, and people copy and paste it. So secrets go through the
server's environment: llama.cpp has a variable for each option below (``common/arg.cpp``). For any
other option that takes a secret, systemd replaces an argument by a variable's value
(systemd.service(5), "command lines").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import UsageError
from tsuku_llm.files import make_folder, replace_file
from tsuku_llm.instances.record import checked_name
from tsuku_llm.operations.session import Session
from tsuku_llm.safe_text import has_password

MASK = "***"
"""Shown instead of a secret."""

_API_KEY = "LLAMA_API_KEY"
_VARIABLES = {"--api-key": _API_KEY, "--hf-token": "HF_TOKEN", "-hft": "HF_TOKEN"}
_SECRET_OPTION = re.compile(r"-hft|--(?:.*-)?(?:key|token|password|secret)")
_OWN = re.compile(r"TSUKU_HOME|TSUKU_LLM_[A-Z_]+")


class Handover(NamedTuple):
    """The parts of a start: what a unit may show, and the secrets that it must not show.

    ``argv`` are the server's arguments, without secrets. None stands for the value of the variable
    ``TSUKU_UNIT_WORD_N``, where N is the argument's position. ``told`` are variables that the
    unit may set, ``secret`` those that belong into a file that only the user can read.
    """

    argv: tuple[str | None, ...]
    told: Mapping[str, str]
    secret: Mapping[str, str]

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
    # A URL in our settings, for example a mirror's, may hold a user and password.
    secret = {name: value for name, value in own.items() if has_password(value)}
    told = {name: value for name, value in own.items() if name not in secret}
    secret |= {name: environ[name] for name in _VARIABLES.values() if environ.get(name)}
    kept: list[str | None] = []
    keys: list[str] = []
    for option, value in _parted(argv):
        variable = _VARIABLES.get(option)
        if value is None:
            kept.append(option)
        elif variable is None:
            kept += [option, None] if option else [None]
            secret[Handover.variable(len(kept) - 1)] = value
        elif variable == _API_KEY:
            keys.append(value)
        else:
            secret[variable] = value
    if keys:  # llama.cpp accepts several keys, separated by commas
        secret[_API_KEY] = ",".join(keys)
    return Handover(tuple(kept), told, secret)


def keep_credentials(session: Session, name: str, secrets: Mapping[str, str], content: str) -> Path:
    """Write a unit's ``secrets`` into a file that only this user can read; return its path.

    Raises UsageError for characters that systemd drops: the server would start without its key.
    """
    for variable, value in secrets.items():
        if not value.isprintable():
            raise UsageError(
                f"{variable} has a character that systemd does not pass on",
                hint="take another key, or let the server read a file: --api-key-file FILE",
            )
    folder = session.paths.state / "credentials"
    path = folder / f"{checked_name(name)}.env"
    # Close the folder before the file is in it: other users can never open the file.
    make_folder(folder, private=True)
    with disk_errors("keeping the credentials of a unit", folder):
        replace_file(path, content.encode("utf-8"), mode=0o600)
    return path


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments with each secret replaced, to be shown."""
    shown: list[str] = []
    for option, value in _parted(argv):
        if option or value is None:
            shown.append(option)
        if value is not None:
            shown.append(MASK)
    return tuple(shown)


def _parted(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each argument and the secret that follows; one that is a secret comes with ""."""
    waiting = iter(argv)
    for argument in waiting:
        option, equals, value = argument.partition("=")
        # llama.cpp accepts underscores in long options as well.
        option = option.replace("_", "-") if option.startswith("--") else option
        if _SECRET_OPTION.fullmatch(option):
            # "--api-key=KEY" or "--api-key KEY".
            secret = value if equals else next(waiting, None)
            yield (argument if secret is None else option), secret
        elif has_password(argument):
            yield "", argument
        else:
            yield argument, None
