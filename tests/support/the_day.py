"""The day that tests have: that of the embedded metadata, whenever they run.

``fix`` moves the product's clock (``tsuku_llm.ground.clock``) in this process and in all of its
children, so that it says ``TODAY`` now, and goes on from there. A child is reached through
``PYTHONPATH``:
``in_children/sitecustomize.py`` moves its clock as the modules are imported. A child that gets no
environment, or ignores it (``python -I``), sees the real day.

Nothing else moves: files have the system's times, and so do TLS and what other programs write. A
test makes a certificate for the real day.

A test whose own metadata expires soon takes its day from them: the fixture ``at`` of
``tests/conftest.py``, and ``on(day)`` in the environment of a child.
"""

import json
import os
import subprocess
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from support.in_children import sitecustomize
from support.in_children.sitecustomize import VARIABLE
from support.tools import require_tool

ROOT = Path(__file__).parents[2]
_SIGNED = json.loads((ROOT / "manifests/metadata/timestamp.json").read_bytes())["signed"]
TODAY = datetime.fromisoformat(_SIGNED["issued"].replace("Z", "+00:00")) + timedelta(hours=12)
"""Half a day after the embedded metadata was signed: no later signature makes it the past."""


def fix() -> None:
    """Let this process and its children have ``TODAY``."""
    folder = str(Path(sitecustomize.__file__).parent)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in others:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, others)])
        os.environ |= on(TODAY)
    sitecustomize.install()


def on(day: datetime | None) -> dict[str, str]:
    """Return the variable that gives a child this day, from now on; the real one for None."""
    return {VARIABLE: str(day.timestamp() - time.time()) if day else ""}


def system_on(day: datetime, folder: Path) -> dict[str, str]:
    """Return variables that give a child this day as the system's, as ``ci/at`` does.

    TLS has it, too.
    """
    return {"LD_PRELOAD": shifting(int(day.timestamp() - time.time()), folder), **on(None)}


def shifting(seconds: int, folder: Path) -> str:
    """Compile in ``folder`` what moves the system's clock for a process that preloads it."""
    file = folder / f"{seconds}.so"
    source = ROOT / "ci" / "day" / "shift.c"
    words = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-DSHIFT={seconds}LL")
    subprocess.run([require_tool("gcc"), *words, source, "-o", file], check=True)
    return str(file)


def day(text: str) -> datetime:
    """Return a day, or a time, that a test writes as a text; in UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).replace(tzinfo=timezone.utc)
