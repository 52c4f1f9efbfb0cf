"""The hosts of a fleet, as a table and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsuku_llm.cli.terminal.answer import ReportedError
from tsuku_llm.cli.terminal.text import table
from tsuku_llm.ground.errors import FleetFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsuku_operator.fleet.fleet import FleetHost

_HEAD = ("host", "GPU", "variant", "release", "state", "reason")


def lines(hosts: Sequence[FleetHost]) -> tuple[str, ...]:
    """Return every host in one line of a table; what is not known is a dash."""
    rows = [
        (
            each.host,
            each.device or "-",
            each.variant or "-",
            each.release or "-",
            each.state,
            each.reason or "",
        )
        for each in hosts
    ]
    return table([_HEAD, *rows], indent=0)


def failure(hosts: Sequence[FleetHost]) -> ReportedError | None:
    """Return the error of a fleet in which a host failed; None if all are well."""
    bad = [each for each in hosts if not each.is_well]
    if not bad:
        return None
    facts = tuple(f"{each.host}: {each.state}: {each.reason or 'no reason'}" for each in bad)
    many = f"{len(bad)} of {len(hosts)} hosts" if len(hosts) > 1 else "the host"
    error = FleetFailed(f"{many} failed or were not reached", facts=facts)
    return ReportedError.of(error)
