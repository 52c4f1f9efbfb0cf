"""Which recorded machines upstream's builds serve, and which a repository with more builds."""

from pathlib import Path

import pytest

from ci.served import Served, ask, lines, load_data
from tsuku_publish.building.matrix import load_matrix

PAGE = Path(__file__).parents[2] / "docs" / "building.md"
DATA = load_data()


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[Served, ...]]:
    return ask(DATA)


def test_the_page_has_the_tables_of_the_machines(found: dict[str, tuple[Served, ...]]) -> None:
    text = PAGE.read_text("utf-8")
    assert "\n".join(lines(DATA, found)) in text, "write it again: python -m ci.served"


def test_each_machine_that_a_build_could_still_help_has_its_reason(
    found: dict[str, tuple[Served, ...]],
) -> None:
    """A build is missing where a driver lists a GPU that no build uses, and where none starts."""
    left = {name for name, (*_, ours) in found.items() if ours.idle or ours.kind == "nothing"}
    without = {name for name, (*_, ours) in found.items() if ours.kind != "GPU"}
    assert left <= DATA.stays.keys() <= without


def test_no_machine_loses_by_more_builds(found: dict[str, tuple[Served, ...]]) -> None:
    order = ("nothing", "CPU", "GPU")
    worse = [
        name
        for name, (_, newest, ours) in found.items()
        if order.index(ours.kind) < order.index(newest.kind)
    ]
    assert worse == []


def test_what_can_be_built_is_among_the_builds() -> None:
    made = {(each.backend, each.toolkit) for each in DATA.build}
    for each in load_matrix().variants:
        if len(each.backends) == 1:
            assert (each.backends[0], each.toolkit) in made, each.name
