"""States that pass: what kept an install from a GPU, and whether that is over.

A driver that waits for a reboot, that sleeps or that a variable hides says nothing about what the
machine can do later. The receipt has all of it: the problems of the hardware, and the variables
that were set. Every start reads that, so this imports nothing that asks a driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tsuku_llm.machine.backends import TABLE, VENDORS

if TYPE_CHECKING:
    from tsuku_llm.machine.hardware import Hardware
    from tsuku_llm.store.records.receipt import Receipt


class Withheld(NamedTuple):
    """A temporary state for which an install did without a GPU.

    ``api`` is the driver API whose problem it is, "" for the whole machine, None for a variable.
    ``slug`` is the problem's, or the variable with its value. ``waits`` tells that the driver did
    not answer, so that the next question may take its whole time limit as well.
    """

    api: str | None
    slug: str
    text: str
    fix: str
    waits: bool = False


def withheld(receipt: Receipt, requested: str) -> tuple[Withheld, ...]:
    """Return the temporary states in which a version was chosen.

    There are none if the user named a backend for it, or names one now (``requested``).
    """
    if not (_is_open(receipt.requested) and _is_open(requested)):
        return ()
    found = tuple(_problems(receipt.hardware, receipt.reasons))
    if receipt.backend == "cpu":
        return (*found, *map(_hidden, receipt.hidden_by))
    # With a GPU's build, a variable may choose among several GPUs: that is not a temporary state.
    # And another driver that hangs is not worth a wait at the start of a build that works.
    return tuple(each for each in found if not each.waits)


def rests_on_others(receipt: Receipt, requested: str, drivers: str) -> bool:
    """Tell whether a version was chosen by itself, for other drivers or devices than there are now.

    ``drivers`` is the digest of those of now, empty if it is not known. ``requested`` is as for
    ``withheld``.
    """
    changed = "" not in (drivers, receipt.drivers) and drivers != receipt.drivers
    own = receipt.unsigned is not None
    return changed and not own and _is_open(receipt.requested) and _is_open(requested)


def _is_open(request: str) -> bool:
    """Tell whether a request leaves the choice of a backend to the machine."""
    return request in ("auto", "gpu") or request in VENDORS


def _problems(hardware: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterator[Withheld]:
    """Read the temporary problems that a receipt has, also one of an older version."""
    found = [("", each, False) for each in _mappings(hardware.get("problems"))]
    found += [
        (str(api.get("name")), problem, api.get("state") == "timed-out")
        for api in _mappings(hardware.get("apis"))
        # One, or none: then the list is empty.
        for problem in _mappings([api.get("problem")])
    ]
    for name, problem, waits in found:
        slug, text, fix = (str(problem.get(key)) for key in ("slug", "text", "fix"))
        # A driver that no variant of the release wanted has kept nothing away.
        wanted = name == "" or any(text in reason for reason in reasons.values())
        if problem.get("transient") is True and wanted:
            yield Withheld(name, slug, text, fix, waits)


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list; the list is from a file, and may be anything."""
    return [each for each in values if isinstance(each, Mapping)] if type(values) is list else []


def _hidden(setting: str) -> Withheld:
    name, _, value = setting.partition("=")
    return Withheld(
        None, setting, f"{name}={value[:100]!r} was set, which can hide a GPU", f"unset {name}"
    )


def hiding(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that can hide a GPU from a backend and are set, as ``NAME=value``."""
    names = {name for row in TABLE for name in row.hiding_variables}
    return tuple(f"{name}={environ[name]}" for name in sorted(names) if name in environ)


def is_set(state: Withheld, environ: Mapping[str, str]) -> bool:
    """Tell whether a variable still has the value that it had at the install."""
    name, _, value = state.slug.partition("=")
    return state.api is None and environ.get(name) == value


def over(
    states: tuple[Withheld, ...], hardware: Hardware, environ: Mapping[str, str]
) -> tuple[Withheld, ...]:
    """Return those of the states that ``hardware`` and the environment do not have any more."""
    now = {("", each.slug) for each in hardware.problems}
    now |= {(api.name, api.problem.slug) for api in hardware.apis if api.problem}
    return tuple(
        each
        for each in states
        if not (is_set(each, environ) if each.api is None else (each.api, each.slug) in now)
    )


def told_moved(variant: str, states: tuple[Withheld, ...]) -> str:
    """Say why another variant may replace ``variant`` now; these ``states`` are over.

    Without one, the drivers or devices are not as they were when it was chosen.
    """
    if not states:
        return f"drivers or devices have changed since {variant} was chosen"
    return f"over: {'; '.join(each.text for each in states)}; {variant} was installed meanwhile"
