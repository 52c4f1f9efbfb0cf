"""What an update fetches, by how archives are written: the table counts what it says."""

import random
import re
from pathlib import Path

import pytest

from ci.bench.updates import main

MIB = 1 << 20


def build(folder: Path, changed: str = "") -> Path:
    """Three libraries that do not pack, of 6, 3 and 2 MiB, and two small files."""
    folder.mkdir()
    sizes = {"a.so": 6 * MIB, "b.so": 3 * MIB, "c.so": 2 * MIB, "d.txt": 100, "e.txt": 100}
    for name, size in sizes.items():
        chance = random.Random(f"{name} {name in changed.split()}")  # noqa: S311
        (folder / name).write_bytes(chance.randbytes(size))
    return folder


@pytest.mark.parametrize(
    ("changed", "what", "costs"),
    [
        # one archive; by file; members of a zip; its pieces of 4 MiB
        ("", "0 of 5 files, 0.0 %", [(11, 1), (0, 0), (0, 0), (0, 0)]),
        ("b.so", "1 of 5 files, 27.3 %", [(11, 1), (3, 1), (3, 1), (7, 1)]),
        ("a.so c.so", "2 of 5 files, 72.7 %", [(11, 1), (8, 2), (8, 2), (11, 1)]),
        ("d.txt", "1 of 5 files, 0.0 %", [(11, 1), (0, 1), (0, 1), (3, 1)]),
    ],
)
def test_bytes_and_requests(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: str,
    what: str,
    costs: list[tuple[int, int]],
) -> None:
    main([str(build(tmp_path / "old")), str(build(tmp_path / "new", changed))])
    row = capsys.readouterr().out.splitlines()[2]
    assert f"| old to new | {what}" in row
    found = re.findall(r"([\d.]+) MB, (\d+)", row)
    assert [(round(float(size) * 1e6 / MIB), int(count)) for size, count in found] == costs
