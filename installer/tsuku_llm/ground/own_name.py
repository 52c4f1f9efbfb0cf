"""The name of this program as a person types it, for texts with a call: ``f"{TSUKU} install"``.

If a shell does not find this copy under its plain name, people see the path of the script that
runs. The names are found out once, when this module is loaded: then each text is a plain string.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tsuku_llm.ground.safe_text import shell_word

PROGRAM = "tsuku-llm"
"""The plain name."""

_PACKAGE = "tsuku_llm"


def name_of(script: str, found: str | None) -> str:
    """Return what to type to call the program that runs as ``script``.

    ``found`` is the file that a shell finds under the program's name, None if there is none. A
    program that only imports this package has no script of ours: the answer is the plain name.
    """
    folder, name = os.path.split(script)
    if name == "__main__.py" and os.path.basename(folder) == _PACKAGE:
        import sysconfig

        # python -m: the script of the same environment is the same program.
        own = Path(sysconfig.get_path("scripts"), PROGRAM)
        return PROGRAM if _same(found, own) else f"{shell_word(sys.executable)} -m {_PACKAGE}"
    # The publisher's program is a neighbour of ours.
    if name.removesuffix(".exe") not in (PROGRAM, "tsuku-publish"):
        return PROGRAM
    # Not resolved: it may be a link in a folder on the PATH.
    own = Path(os.path.abspath(script)).with_name(PROGRAM)
    return PROGRAM if _same(found, own) else shell_word(str(own))


def _same(found: str | None, script: Path) -> bool:
    if found is None:
        return False
    try:
        return script.samefile(found)
    except OSError:
        # On Windows the script is an .exe, and the interpreter gets its path without the suffix.
        return Path(found).with_suffix("") == script


def _found() -> str | None:
    """Return the file that a shell finds under the program's name."""
    # Not ``shutil.which``: its module imports all compression modules.
    name = f"{PROGRAM}.exe" if sys.platform == "win32" else PROGRAM
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


_SCRIPT = next(iter(sys.argv), "")  # a program that imports this package may have emptied it

TSUKU = name_of(_SCRIPT, _found())
"""What this user types."""

ROOTS_TSUKU = name_of(_SCRIPT, None)
"""What comes after ``sudo``: root has another PATH, rarely with the user's folder for programs."""

SUDO = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
"""What comes before a command for root, who needs no sudo and often has none, as in a container."""


def typed(command: str) -> str:
    """Return a command's full name, such as ``tsuku-llm bench``, as this user types it."""
    name, space, rest = command.partition(" ")
    return f"{TSUKU if name == PROGRAM else name}{space}{rest}"
