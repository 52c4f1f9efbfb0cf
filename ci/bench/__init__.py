"""Benchmarks: each against a named tool, side by side in the same run."""

import sys
from pathlib import Path

# The release server, the stand-in and the tiny model are those of the tests.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
