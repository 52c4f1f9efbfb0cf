"""Unpack an artifact into a folder, every member checked before it is written.

No network and no store: what comes in is a verified file (or a stream of verified
bytes), what goes out is a list of what was written. The containers are read by loops of
our own, not by ``tarfile`` or ``zipfile``: their checks differ between Python 3.10 and
3.14, and ``tarfile``'s filters are no defence (CVE-2025-4517) or absent (3.11.2).
"""

from tsuku_llm.archive.budget import Budget
from tsuku_llm.archive.linking import make_links
from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.archive.placing import Aside, as_it_is, place
from tsuku_llm.archive.unpack import Unpacked, UnpackedFile, UnpackedLink, in_order, unpack
from tsuku_llm.archive.writing import THREADS

__all__ = [
    "THREADS",
    "Aside",
    "Budget",
    "Names",
    "Unpacked",
    "UnpackedFile",
    "UnpackedLink",
    "as_it_is",
    "checked_parts",
    "in_order",
    "make_links",
    "place",
    "unpack",
]
