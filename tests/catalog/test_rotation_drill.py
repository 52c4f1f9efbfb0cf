"""Five rotations of all keys behind the back of a client with the oldest root."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.repository import release_document

from tsuku_llm.catalog import metadata_status
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.metadata.refresh import refresh

DRILL = Path(__file__).parents[1] / "support" / "rotation_drill.py"


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_M10_C01_a_kill_at_any_step_of_the_rotations_leaves_the_old_or_the_new_state(
    tmp_path: Path,
) -> None:
    line = [sys.executable, str(DRILL), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=570)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] > 100
    assert not found["wrong"]


@pytest.mark.parametrize("file", ["seen", "roots/2.root"])
@pytest.mark.parametrize("content", [b"", b"\0" * 600, b"{}", b"[" * 100_000], ids=range(4))
def test_C10_a_damaged_memory_is_made_again(tmp_path: Path, file: str, content: bytes) -> None:
    """A power failure may leave any of its files empty or full of zeros."""
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.publish(release_document("b1"))
    shop.simulator.rotate("root", "targets")
    shop.write()
    session = shop.session(tmp_path / "home")
    damaged = metadata_status.folder_of(session.paths.data, "test") / f"{file}.json"
    assert damaged.read_bytes() != content
    damaged.write_bytes(content)
    assert load_catalog(session).notes == (), "what counts is the kept copy"
    shop.simulator.publish(release_document("b2"))
    shop.write()
    assert refresh(session).entries[0].release == "b2"
