"""Packing of builds for publishers: the reverse of ``archive``.

A build becomes a few archives. Each of them can be installed, or linked from an older version,
without the others. So an update downloads only what changed between two builds.
"""

from tsuku_llm.packing.contents import contents
from tsuku_llm.packing.parts import LARGE, parted
from tsuku_llm.packing.tarball import LEVEL, write_tarball

__all__ = ["LARGE", "LEVEL", "contents", "parted", "write_tarball"]
