"""Both libraries that inflate, in turn: importing ``inflater`` runs a module's tests with each."""

from collections.abc import Iterator

import pytest

from tsuku_llm.archive.formats import gzips

__all__ = ["inflater"]


@pytest.fixture(scope="module", autouse=True, params=["zlib", "isal.isal_zlib"])
def inflater(request: pytest.FixtureRequest) -> Iterator[None]:
    before = gzips.LIBRARY
    gzips.LIBRARY = pytest.importorskip(request.param)
    yield
    gzips.LIBRARY = before
