"""Unpack an artifact into a folder, and check every member before it is written.

The package knows no network and no store. The input is a verified file (or a stream of
verified bytes), the output is a list of the written files and links. Our own loops read the
containers, not ``tarfile`` or ``zipfile``. The checks of those differ between Python 3.10
and 3.14. The filters of ``tarfile`` do not protect (CVE-2025-4517) or are absent (3.11.2).
"""

from tsuku_llm.archive.composing import (
    compose,
    join,
    join_listed,
    kept_artifacts,
    needed_artifacts,
    plugins_in,
)
from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.archive.placing import Aside, as_it_is, place
from tsuku_llm.archive.unpack import copy_folder, in_order, make_links, unpack
from tsuku_llm.archive.writing import THREADS

__all__ = [
    "THREADS",
    "Aside",
    "Budget",
    "Names",
    "as_it_is",
    "checked_parts",
    "compose",
    "copy_folder",
    "in_order",
    "join",
    "join_listed",
    "kept_artifacts",
    "make_links",
    "needed_artifacts",
    "place",
    "plugins_in",
    "unpack",
]
