"""The one thing that helps where no variant fits a machine and a request. Pure."""

from __future__ import annotations

from tsuku_llm.chain.judging import NOTHING, diagnose
from tsuku_llm.chain.links import subject_of
from tsuku_llm.errors import NotInstalled
from tsuku_llm.hardware import Hardware
from tsuku_llm.selection import Selection


def remedy(requested: str, everything: Selection, hardware: Hardware, elsewhere: str) -> str:
    """Say what helps, as ``doctor`` would for this request, and what else leads to a build.

    ``everything`` compares all variants of the release, also those that are not requested.
    ``elsewhere`` is the command that takes a fitting variant from another release or channel, ""
    if there is none. The text says so if nothing helps.
    """
    subject = subject_of(requested, everything, hardware, None)
    chain = diagnose(subject, hardware, everything, NotInstalled(""), None)
    fix = chain.fault.fix if chain.fault else NOTHING
    # Only what fits here is offered, and never the request that has just failed.
    best = next(iter(everything.compatible), None)
    other = f"tsuku-llm install --backend {best.variant.name}" if best else ""
    # Some fixes of the chain name a variant already; what was asked for comes before that.
    ways = (elsewhere, fix) if "tsuku-llm install" in fix else (fix, elsewhere or other)
    return "; or: ".join(way for way in ways if way)
