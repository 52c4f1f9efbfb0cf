"""Pack a build so that what did not change between two of them need not be fetched again.

The other direction of ``archive``, for whoever publishes builds: a build becomes a few
archives, each of which can be installed, or linked from an older version, by itself.
"""

from tsuku_llm.packing.contents import contents
from tsuku_llm.packing.parts import LARGE, parted
from tsuku_llm.packing.tarball import LEVEL, write_tarball

__all__ = ["LARGE", "LEVEL", "contents", "parted", "write_tarball"]
