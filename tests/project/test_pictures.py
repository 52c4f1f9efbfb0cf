"""The pictures of the documents: shown somewhere, complete in themselves, and current."""

import re
import sys
import xml.etree.ElementTree as ET
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "screenshots").glob("*.svg"))
DOCUMENTS = "\n".join(path.read_text("utf-8") for path in ROOT.glob("docs/*.md"))


def script() -> ModuleType:
    """``ci/screenshots`` as a module."""
    loader = SourceFileLoader("screenshots", str(ROOT / "ci" / "screenshots"))
    spec = spec_from_loader("screenshots", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["screenshots"] = module
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_shown_and_loads_nothing(picture: Path) -> None:
    assert f"](screenshots/{picture.name})" in DOCUMENTS
    text = picture.read_text("utf-8")
    ET.fromstring(text)  # noqa: S314 - our own file
    assert not re.search(r"""(?:href=|url\()["']?https?:""", text)
    # Nothing of the machine that made it: each command has its plain name.
    assert "python" not in text.lower()


def test_each_picture_of_the_script_is_there() -> None:
    assert {path.stem for path in PICTURES} == {*script().OF_A_TERMINAL, "keys", "install-progress"}


def test_the_picture_of_the_keys_shows_the_keys_of_this_repository() -> None:
    shown = (ROOT / "docs" / "screenshots" / "keys.svg").read_text("utf-8")
    assert shown == script().draw_keys(), "run: ci/screenshots keys"


RECORDS = sorted((ROOT / "docs" / "screenshots").glob("*.txt"))
LONGEST = 2.0
"""Seconds in which nothing may be written, unless a line says meanwhile what is waited for."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_of_a_terminal_has_times_and_no_place_of_its_machine(record: Path) -> None:
    assert f"](screenshots/{record.name})" in DOCUMENTS
    text = record.read_text("utf-8")
    # Of a mirror only the scheme is kept; the others are the program's own words.
    assert {*re.findall(r"(?:https?|file)://([^/:\s]+)", text)} <= {"…", "127.0.0.1", "github.com"}
    commands = re.findall(r"([\d.]+) s without any before ([\d.]+): (.*)", text)
    assert [command for *_, command in commands] == re.findall(
        r"^ +[\d.]+  \$ (.*)", text, re.MULTILINE
    )
    stood = [float(second) for second in re.findall(r"^ +([\d.]+)  \(\w", text, re.MULTILINE)]
    for silence, end, _ in commands:
        begun = float(end) - float(silence)
        said = any(begun <= second <= float(end) for second in stood)
        assert said or float(silence) <= LONGEST, end
    assert re.search(r"^ +[\d.]+  > /bye$", text, re.MULTILINE)


def test_the_ways_of_newcomers_are_recorded() -> None:
    assert [record.stem for record in RECORDS] == ["debian-12", "debian-13", "without-python"]
