"""Builds that are made of two signed ones stay behind one door: few files know of them."""

import re
from pathlib import Path

INSTALLER = Path(__file__).parents[2] / "installer"

_NAMES = re.compile(
    r"combined? (?:builds?|variants?|versions?|one)\b|combinations\b|cannot-?combine|combinedoffer"
    r"|\.combined?\b|\bcombine: bool|\b(?-i:COMBINED)\b",
    re.IGNORECASE,
)

DOOR = {
    "tsuku_llm/archive/composing.py",
    "tsuku_llm/choose/combinations.py",
    "tsuku_llm/choose/selection.py",
    "tsuku_llm/ground/errors.py",
    "tsuku_llm/steps/choosing/choice.py",
}
"""Choice only passes the setting on."""

SETTING = {
    "tsuku_llm/cli/values.py",
    "tsuku_llm/config/keys.py",
    "tsuku_llm/config/settings.py",
}
"""The word "combined" of ``llm.prefer``: read, kept and completed."""


def test_only_the_door_knows_builds_that_are_made_of_two() -> None:
    found = {
        path.relative_to(INSTALLER).as_posix()
        for path in INSTALLER.rglob("*")
        if path.suffix in {".py", ".toml"} and _NAMES.search(path.read_text("utf-8"))
    }
    assert found == DOOR | SETTING
    assert len(DOOR) <= 6
