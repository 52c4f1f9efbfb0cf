from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[1] / "support" / "store_faults.py"
ACTIONS = ("install", "update", "repair", "rollback", "uninstall", "prune")
ERRORS = "ENOSPC,EIO,EACCES,EMFILE"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a memory disk where there is one: hundreds of installs are flushed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # not shared
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        *(
            pytest.param(action, "kill", id=f"C01-killed-at-every-step-of-{action}")
            for action in ACTIONS
        ),
        *(
            pytest.param(action, ERRORS, id=f"C03-C04-C06-every-step-of-{action}-fails")
            for action in ACTIONS
        ),
    ],
)
def test_a_store_survives_a_fault_at_every_step(action: str, fault: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, DRIVER, action, fault, folder],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr
