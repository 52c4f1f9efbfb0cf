"""A chain of links, the first broken one, and its fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tsuku_llm._version import __version__
from tsuku_llm.choose.chain.links import Chain, Link, Stage
from tsuku_llm.cli.render.choice import machine_name, named_problem
from tsuku_llm.cli.render.installed import (
    rolled_back_lines,
    told_lines,
)
from tsuku_llm.cli.terminal.answer import ReportedError
from tsuku_llm.cli.terminal.text import computed, named, sentence, size, table
from tsuku_llm.ground.own_name import PROGRAM, TSUKU
from tsuku_llm.machine.hardware import Problem
from tsuku_llm.steps.drivers.caches import CacheState
from tsuku_llm.steps.report.doctor import Examination


def failure(chain: Chain) -> ReportedError | None:
    """Return the first broken link as the error for a program; None if the chain is whole."""
    link, fault = chain.broken, chain.fault
    if link is None or fault is None:
        return None
    return ReportedError(link.error.slug, _broken(link, fault), link.evidence, fault.fix)


def lines(examination: Examination) -> tuple[str, ...]:
    """Return the chain for people."""
    chain = examination.chain
    rows = [row for link in chain.links for row in _rows(link)]
    told = told_lines(examination.installed)
    stale = examination.choice.stale
    # A problem that is a link's fault is shown there.
    shown = {link.fault.text for link in chain.links if link.fault}
    return (
        _sentence(examination),
        f"from the GPU to the server, for {_subject(examination)}:",
        *table([*rows, *_cache_rows(examination.caches)]),
        *(
            f"the build {each}"
            for each in computed(examination.deviation, examination.not_computed)
        ),
        f"this is {PROGRAM} {__version__}, {examination.updater.summary}",
        *_verdict(examination),
        # The cheapest way to each GPU that is not used.
        *(
            f"then: {TSUKU} install" if chain.fault and way.fix == chain.fault.fix else way.told
            for way in examination.choice.ways
        ),
        # ``explain`` has the fixes of the other problems of this machine.
        *(
            f"also {named_problem(problem)}"
            for problem in examination.choice.hardware.all_problems
            if problem.text not in shown
        ),
        *told,
        *((stale,) if stale and stale not in told else ()),
        *rolled_back_lines(examination.rolled_back),
    )


def _sentence(examination: Examination) -> str:
    chain = examination.chain
    if chain.broken is None or chain.fault is None:
        on_cpu = chain.subject.backend == "cpu"
        found = f"every step from the {'CPU' if on_cpu else 'GPU'} to the server works"
    else:
        found = f"the first broken link from the GPU to the server is: {_name(chain.broken.stage)}"
    return sentence(f"on {machine_name(examination.choice)}, {found}")


def _subject(examination: Examination) -> str:
    """Return the backend and variant that are examined, and the release that they belong to."""
    subject, choice = examination.chain.subject, examination.choice
    build = f"{subject.backend} ({subject.variant.name})" if subject.variant else subject.backend
    release = named(choice.release.release, choice.release.version)
    where = f"repository {choice.catalog.repository.name}, channel {choice.channel}"
    return f"{build} of {release}, {where}"


def _name(stage: Stage) -> str:
    return stage.value.replace("-", " ")


def _rows(link: Link) -> Iterator[tuple[str, str, str]]:
    """Yield the link, and what is known of it: first the fault, then each fact."""
    fault = (link.fault.text,) if link.fault else ()
    # The first fact is in the line of the link; the others are below it.
    first, *rest = (*fault, *link.evidence) or (_UNSEEN.get(link.stage, "not reached"),)
    yield (link.state.value, _name(link.stage), first)
    yield from (("", "", fact) for fact in rest)


_CACHE_STATES = {"kept": "ok", "empty": "ok", "off": "off", "unusable": "broken"}


def _cache_rows(caches: Sequence[CacheState]) -> Iterator[tuple[str, str, str]]:
    """Yield what is known of the drivers' caches; none of it breaks the chain."""
    # A backend has drivers of several vendors, and most machines use one of them.
    shown = [cache for cache in caches if cache.state != "empty"] or list(caches)
    # One row for drivers of which the same is to be said.
    rows: dict[tuple[str, str], list[str]] = {}
    for cache in shown:
        text = cache.text
        if cache.state == "kept":
            text += f", {size(cache.size)}"
        elif cache.state == "empty":
            text += ", nothing compiled yet"
        elif cache.state == "unusable":
            text += "; each start compiles again" + (f"; fix: {cache.fix}" if cache.fix else "")
        rows.setdefault((cache.state, text), []).append(cache.driver)
    name = "driver caches"
    for (state, text), drivers in rows.items():
        yield (_CACHE_STATES[state], name, f"{', '.join(drivers)}: {text}")
        name = ""


_ELSEWHERE = "not visible, as is normal in containers, in virtual machines and in WSL"
_UNSEEN = {Stage.PCI: _ELSEWHERE, Stage.MODULE: _ELSEWHERE}
"""Links that may be invisible although nothing is wrong; any other link without facts was not
reached."""


def _verdict(examination: Examination) -> tuple[str, ...]:
    chain = examination.chain
    if chain.broken is None or chain.fault is None:
        # The CPU's build in use was examined because no GPU shows.
        if chain.subject.backend == "cpu" and examination.choice.selection.requested == "auto":
            return (
                "no link is broken; no GPU is visible",
                examination.given_gpu or f"if this machine has one: {TSUKU} doctor --backend gpu",
            )
        return ("no link is broken",)
    return (f"first broken: {_broken(chain.broken, chain.fault)}", f"fix: {chain.fault.fix}")


def _broken(link: Link, fault: Problem) -> str:
    return f"{_name(link.stage)}{' (temporary)' if fault.transient else ''}: {fault.text}"
