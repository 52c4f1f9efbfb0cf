"""The program's name in texts for people, as it works when somebody types it.

Hints say ``tsuku-llm COMMAND``. If a shell does not find this copy under that name, people see the
path of the script that runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

from tsuku_llm.cli.words.table import COMMANDS, PROGRAM

_PACKAGE = "tsuku_llm"

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
    # root has another PATH, which rarely has the user's folder for programs.
    root = found["root"] or ""
    return root + own_name(on_path=not root)


@cache
def own_name(*, on_path: bool) -> str:
    """Return what to type for this run, ``on_path`` if the PATH counts."""
    return name_of(sys.argv[0], shutil.which(PROGRAM) if on_path else None)


def name_of(script: str, found: str | None) -> str:
    """Return what to type to call the program that runs as ``script``.

    ``found`` is the file that a shell finds under the program's name, None if there is none. A
    program that only imports this package has no script of ours: the answer is the plain name.
    """
    # Not resolved: it may be a link in a folder on the PATH.
    running = Path(os.path.abspath(script))
    if running.name == "__main__.py" and running.parent.name == _PACKAGE:
        # python -m: the script of the same environment is the same program.
        own = Path(sysconfig.get_path("scripts"), PROGRAM)
        return PROGRAM if _same(found, own) else _quoted(sys.executable, "-m", _PACKAGE)
    # The publisher's program is a neighbour of ours.
    if running.name.removesuffix(".exe") not in (PROGRAM, "tsuku-publish"):
        return PROGRAM
    own = running.with_name(PROGRAM)
    return PROGRAM if _same(found, own) else _quoted(str(own))


def _same(found: str | None, script: Path) -> bool:
    if found is None:
        return False
    try:
        return script.samefile(found)
    except OSError:
        # On Windows the script is an .exe, and the interpreter gets its path without the suffix.
        return Path(found).with_suffix("") == script


def _quoted(*words: str) -> str:
    if sys.platform == "win32":
        return " ".join(f'"{word}"' if " " in word else word for word in words)
    return shlex.join(words)
