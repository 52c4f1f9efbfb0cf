"""The display adapters among the supporting facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tsuku_llm.machine.hardware import Evidence

# The adapters among the supporting facts: sysfs' ids with the bound driver, and Windows' ids.
_ON_LINUX = re.compile(r"([0-9a-f]{4}):([0-9a-f?]{4}) \(driver (\S+)\)")
_ON_WINDOWS = re.compile(r"ven_([0-9a-f]{4})()\S*\s*(\S*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A display adapter among the supporting facts; ``driver`` is None if none is bound."""

    name: str
    vendor: int
    id: str
    driver: str | None

    @property
    def device(self) -> int | None:
        """Its device number on the PCI bus, if Linux tells it."""
        match = _ON_LINUX.match(f"{self.id} (driver -)")
        return int(match[2], 16) if match and "?" not in match[2] else None


def adapters_in(evidence: Iterable[Evidence], vendors: frozenset[int]) -> Iterator[Adapter]:
    """Find the display adapters of these vendors among the supporting facts."""
    for fact in evidence:
        match = _ON_LINUX.match(fact.result) or _ON_WINDOWS.search(fact.result)
        if match and int(match[1], 16) in vendors:
            driver = None if match[3] in ("", "none") else match[3]
            yield Adapter(fact.call, int(match[1], 16), fact.result.split(" ")[0], driver)
