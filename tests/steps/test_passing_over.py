"""Why a release or a variant is passed over: each reason alone, in pairs, and in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.choose.fitting import Reason
from tsuku_llm.machine.hardware import Problem
from tsuku_llm.steps.choosing.passing_over import (
    Bounds,
    Kept,
    Offered,
    PassedOver,
    texts,
    why_not_started,
    why_passed_over,
    why_unfit,
)
from tsuku_llm.store.records.updates import RolledBack

OFFERED = Offered("b2", "2026-11-20")
BOUNDS = Bounds("test", datetime(2026, 11, 22, tzinfo=timezone.utc))
MARK = RolledBack("test", "b2", "b2-cuda-0123456789ab", "slow", "2026-11-21T02:00:00Z")
WAITS = Problem("reboot", "the driver waits for a reboot", "restart this machine", transient=True)


class Case(NamedTuple):
    """A reason, and what makes it: changes to what is offered and to the bounds."""

    slug: str
    text: str
    ends: str | None
    offered: dict[str, Any]
    bounds: dict[str, Any]


CASES = (
    Case(
        "revoked",
        "revoked by its publisher on 2026-11-21: it leaks",
        None,
        {"revocation": Revocation("test", "b2", "it leaks", "2026-11-21")},
        {},
    ),
    Case(
        "pinned",
        "llm.release keeps b1",
        "tsuku-llm config unset llm.release",
        {},
        {"kept": Kept("b1", "tsuku-llm config unset llm.release")},
    ),
    Case(
        "young",
        "published 2026-11-20, and llm.min_age is 7",
        "tsuku-llm install --release b2 --repository test",
        {},
        {"min_age": 7},
    ),
    Case(
        "rolled-back",
        "rolled back here (2026-11-21: slow)",
        "tsuku-llm update --retry",
        {},
        {"marks": (MARK,)},
    ),
    Case(
        "not-in-bundle",
        "the bundle does not have it",
        "tsuku-llm bundle create FILE --hardware MACHINE.json",
        {"builds": (("aa", "bb"), ("cc",))},
        {"held": frozenset({"aa"})},
    ),
)
"""Every reason against a release, in order of precedence."""


def reasons(*cases: Case) -> tuple[PassedOver, ...]:
    offered, bounds = OFFERED, BOUNDS
    for each in cases:
        offered, bounds = offered._replace(**each.offered), bounds._replace(**each.bounds)
    return why_passed_over(offered, bounds)


def expected(case: Case) -> PassedOver:
    return PassedOver("b2", None, case.slug, case.text, case.ends)


def test_without_a_reason_it_is_taken() -> None:
    assert reasons() == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_each_reason_alone(case: Case) -> None:
    assert reasons(case) == (expected(case),)


@pytest.mark.parametrize(
    "pair", [*combinations(CASES, 2)], ids=lambda pair: "+".join(each.slug for each in pair)
)
def test_of_two_reasons_the_more_important_comes_first(pair: tuple[Case, Case]) -> None:
    assert reasons(*reversed(pair)) == tuple(map(expected, pair))


@given(st.sets(st.sampled_from(range(len(CASES)))))
def test_reasons_do_not_hide_one_another(chosen: set[int]) -> None:
    cases = [CASES[number] for number in sorted(chosen)]
    assert reasons(*cases) == tuple(map(expected, cases))


def test_the_release_that_a_setting_names_is_not_passed_over() -> None:
    kept = Kept("b2", "tsuku-llm config unset llm.release")
    assert why_passed_over(OFFERED, BOUNDS._replace(kept=kept)) == ()


def test_a_revoked_release_may_be_allowed() -> None:
    revoked = OFFERED._replace(revocation=Revocation("test", "b2"))
    assert why_passed_over(revoked, BOUNDS._replace(allow_revoked=True)) == ()


def test_a_revocation_by_another_repository_ends_with_that_one() -> None:
    other = Revocation("other", "b7", foreign=True)
    (why,) = why_passed_over(OFFERED._replace(revocation=other), BOUNDS)
    assert why.told.endswith("; to take it: tsuku-llm repository remove other")


@pytest.mark.parametrize("bounds", [{"min_age": 9000}, {"marks": (MARK,)}])
def test_neither_age_nor_a_mark_is_against_what_is_installed(bounds: dict[str, Any]) -> None:
    assert why_passed_over(OFFERED, BOUNDS._replace(**bounds))
    assert why_passed_over(OFFERED, BOUNDS._replace(**bounds, here="b2")) == ()


@pytest.mark.parametrize("published", ["2027-01-01", "soon", ""])
def test_a_date_counts_only_with_the_setting(published: str) -> None:
    offered = OFFERED._replace(published=published)
    assert why_passed_over(offered, BOUNDS) == ()
    assert why_passed_over(offered, BOUNDS._replace(min_age=1))


def test_another_variant_of_the_installed_release_may_have_failed_here() -> None:
    bounds = BOUNDS._replace(marks=(MARK,), here="b2")
    assert why_passed_over(OFFERED._replace(id=MARK.id), bounds)
    assert why_passed_over(OFFERED._replace(id="b2-cpu-0123456789ab"), bounds) == ()


def test_a_mark_is_about_its_own_repository() -> None:
    bounds = BOUNDS._replace(repository="other", marks=(MARK,))
    assert why_passed_over(OFFERED, bounds) == ()


def test_one_complete_build_in_the_bundle_is_enough() -> None:
    held = BOUNDS._replace(held=frozenset({"cc"}))
    assert why_passed_over(OFFERED._replace(builds=(("aa", "bb"), ("cc",))), held) == ()
    assert why_passed_over(OFFERED, held) == (), "a file that cannot be read is no reason"
    assert why_passed_over(OFFERED._replace(builds=()), held)


def test_what_does_not_run_here_keeps_its_own_reason() -> None:
    found = why_unfit("b2", "cuda", Reason("glibc", "it needs glibc 2.38"), [WAITS])
    assert found == PassedOver("b2", "cuda", "glibc", "it needs glibc 2.38")
    assert texts([found]) == {"cuda": "it needs glibc 2.38"}


def test_what_a_passing_problem_withholds_says_what_ends_it() -> None:
    reason = Reason("reboot", "the driver waits for a reboot")
    found = why_unfit("b2", "cuda", reason, [WAITS])
    assert found == PassedOver("b2", "cuda", "withheld", reason.text, "restart this machine")
    lasting = why_unfit("b2", "cuda", reason, [replace(WAITS, transient=False)])
    assert (lasting.slug, lasting.ends) == ("reboot", None)


def test_a_build_that_did_not_start_can_be_tried_again() -> None:
    again = "tsuku-llm install --force --release b2 --backend cuda --repository test"
    found = why_not_started("b2", "cuda", "it ends with SIGSEGV", "test")
    assert found == PassedOver("b2", "cuda", "failed-start", "it ends with SIGSEGV", again)
