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
