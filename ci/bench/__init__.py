"""Benchmarks: each one against a named tool, in interleaved runs."""

import sys
from pathlib import Path

# The benchmarks use the release server, the stand-in and the tiny model of the tests.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
