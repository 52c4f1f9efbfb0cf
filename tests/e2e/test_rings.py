"""Rings: a release that goes through a company's channels, signature by signature."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.convergence import FAST, SelfUpdating, self_updating
from support.own_publisher import OwnPublisher
from support.release_server import User

from ci.rings import CASES, simulate
from ci.rings.__main__ import MACHINES, MOST, SEEDS, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rings.md"

RINGS = ("canary", "early", "all")


class Company(OwnPublisher):
    """A company with rings; what is in each of them is its only decision."""

    def build(self, tag: str, *serve: str) -> None:
        """Make a release whose server does as told."""
        self.shop._packed[tag] = self.shop.stand_in(tag, serve=serve or FAST)
        self.release(tag, tag)

    def sign(self, **rings: list[str]) -> None:
        """One signature."""
        self.channels(**rings)
        self.publish()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, SelfUpdating]]:
    with ExitStack() as stack:
        found = {}
        for ring in RINGS:
            folder = tmp_path / ring
            folder.mkdir()
            found[ring] = stack.enter_context(self_updating(folder))
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")
def test_a_release_reaches_each_ring_by_one_signature_and_a_bad_one_stays_in_the_first(
    machines: dict[str, SelfUpdating], tmp_path: Path
) -> None:
    (tmp_path / "company").mkdir()
    company = Company(tmp_path / "company", machines["canary"].shop, "company")
    company.build("b1")
    company.sign(canary=["b1"], early=["b1"], all=["b1"])
    for ring, machine in machines.items():
        env = {**machine.user.env, "TSUKU_LLM_REPOSITORY": "company", "TSUKU_LLM_CHANNEL": ring}
        env["TSUKU_LLM_MIRROR"] = company.shop.mirror
        machine.user = company.adopt(User(machine.home, env))
        machine.run("install")
    machines["canary"].serve()

    def night() -> list[tuple[int, str]]:
        """The exit code of each machine's update, and the release that it has then."""
        return [
            (machine.user.run("update", "--unattended").code, machine.active())
            for machine in machines.values()
        ]

    company.build("b2")
    company.sign(canary=["b2", "b1"], early=["b1"], all=["b1"])
    assert night() == [(0, "b2"), (0, "b1"), (0, "b1")]
    company.sign(canary=["b2", "b1"], early=["b2", "b1"], all=["b1"])
    assert night() == [(0, "b2"), (0, "b2"), (0, "b1")]
    company.sign(canary=["b2", "b1"], early=["b2", "b1"], all=["b2", "b1"])
    assert night() == [(0, "b2"), (0, "b2"), (0, "b2")]
    company.build("b3", "err the flux is open", "exit 42")
    company.sign(canary=["b3", "b2"], early=["b2"], all=["b2"])
    assert night() == [(9, "b2"), (0, "b2"), (0, "b2")]
    assert night() == [(0, "b2"), (0, "b2"), (0, "b2")]
    assert machines["canary"].runs() == "b2"


def test_the_page_has_the_table_of_the_simulation_and_no_bad_release_goes_too_far() -> None:
    lines, in_time = table(MACHINES, SEEDS)
    assert in_time
    text = PAGE.read_text("utf-8")
    assert "\n".join(lines) in text, "write it again: python -m ci.rings"


def test_the_simulation_would_notice_a_release_that_goes_too_far() -> None:
    """A first ring that lacks the driver on which a release fails lets it pass."""
    by_chance = next(case for case in CASES if not case.composed)
    took = [simulate(2000, by_chance, seed).took for seed in range(20)]
    assert max(took) > MOST * 2000
    assert simulate(2000, by_chance, 1) == simulate(2000, by_chance, 1)
