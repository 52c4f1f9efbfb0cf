"""The program's name in texts for people, as it works when somebody types it.

Hints say ``tsuku-llm COMMAND``. If a shell does not find this copy under that name, people see the
path of the script that runs.
"""

from __future__ import annotations

import os
import re

from tsuku_llm.cli.words.table import COMMANDS
from tsuku_llm.ground.own_name import PROGRAM, ROOTS_TSUKU, TSUKU

_CALL = re.compile(
    # Not the end of a path or of a longer word, and one of our commands or options follows.
    rf"(?<![\w./\\-])(?P<root>sudo (?:\w+=\S+ )*)?{PROGRAM}(?= (?:{'|'.join(COMMANDS)}|--\w+)\b)"
)


# Where a command begins, but not one for the user of a container's host.
_SUDO = re.compile(r"(?:^|(?<=[:;&] )|(?<=\())(?<!host: )sudo (?=\w)", re.MULTILINE)


def as_typed(text: str) -> str:
    """Return a text whose calls of this program work as they are printed, by this user."""
    text = _CALL.sub(_call, text)
    # root needs no sudo, and mostly has none: a container, a small Debian.
    return _SUDO.sub("", text) if _is_root() else text


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _call(found: re.Match[str]) -> str:
    root = found["root"] or ""
    return root + (ROOTS_TSUKU if root else TSUKU)
