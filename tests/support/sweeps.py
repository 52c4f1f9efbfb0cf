"""How many of its steps a sweep takes: a sample in the suite, and all of them in ``ci/faults``."""

import os

_WHOLE = 1000
"""With at least so many FUZZ_EXAMPLES nothing is left out."""


def stride(sampled: int) -> int:
    """Return how far apart the steps of a sweep are, ``sampled`` in the suite."""
    return 1 if int(os.environ.get("FUZZ_EXAMPLES", "0")) >= _WHOLE else sampled
