"""Errors, hints and help texts are in plain English."""

import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tsuku_llm.launch.failed.diagnosis import known_causes
from tsuku_llm.machine.fixes import table

ROOT = Path(__file__).parents[2]
MANNERED = re.compile(
    r"\b(nobody|whoever|somebody|anew|thereby|be it|had from|all the same|not in order)\b",
    re.IGNORECASE,
)
NO_MESSAGES = {"speed.py"}
"""The modules whose long texts are no messages: the prompt for a model."""


def messages() -> dict[str, str]:
    """Every message of the package by its place, as ``ci/grain --messages`` finds them.

    The causes of failed starts and their fixes are data.
    """
    loader = SourceFileLoader("grain", str(ROOT / "ci" / "grain"))
    spec = spec_from_loader("grain", loader)
    assert spec is not None
    grain = module_from_spec(spec)
    sys.modules["grain"] = grain  # its dataclass looks itself up there
    loader.exec_module(grain)
    said, ends = known_causes()
    told = {
        f"causes.toml: {row.told.slug}: {text}": text
        for row in (*said, *ends.values())
        for text in (row.told.cause, row.told.fix)
    }
    told |= {
        f"fixes.toml: {need}: {words}": fix
        for need, rows in table().items()
        for words, fix in rows.items()
    }
    return told | {
        f"{path.name}:{line}": text
        for path in sorted((ROOT / "installer").rglob("*.py"))
        if path.name not in NO_MESSAGES
        for line, text in grain.read(path).messages()
    }


def test_a_message_says_it_in_plain_words() -> None:
    found = messages()
    assert len(found) > 1000
    assert not {place: text for place, text in found.items() if MANNERED.search(text)}


@pytest.mark.parametrize("text", ["install it anew", "Whoever asks", "the server is not in order"])
def test_a_mannered_message_is_seen(text: str) -> None:
    assert MANNERED.search(text)
