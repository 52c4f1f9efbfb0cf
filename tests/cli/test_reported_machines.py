"""Machines of public reports: what the program chooses there, and what it tells people to do.

The descriptions are in ``tests/reported_machines.json``. Those with ``not_yet`` are not answered
rightly yet; the mark goes with the change that answers them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.program import environment, run_program
from support.reported_machines import SYSTEMS, descriptions, recording

from tsuku_llm.steps.session import FAKE_HARDWARE

MACHINES = descriptions()
KEYS = {"name", "report", "right", "machine", "expect", "not_yet"}
EXPECTED = {"selected", "device", "compatible", "transient", "place", "say", "not_say"}
COMMANDS = {"explain": ["explain"], "doctor": ["doctor"], "install": ["install", "--dry-run"]}
REPORT = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")


def _cases() -> Iterator[Any]:
    for each in MACHINES:
        waits = [pytest.mark.xfail(strict=True, reason=each["right"])] if "not_yet" in each else []
        yield pytest.param(each, id=each["name"], marks=waits)


def test_each_machine_has_a_report_and_a_right_answer() -> None:
    names = [each["name"] for each in MACHINES]
    assert len(names) == len(set(names)) >= 60
    for each in MACHINES:
        assert each.keys() <= KEYS
        assert each["expect"].keys() <= EXPECTED
        assert each["right"]
        assert each["machine"]["system"] in SYSTEMS
        assert REPORT.search(each["report"])


@pytest.mark.parametrize("described", list(_cases()))
def test_a_reported_machine_is_answered_rightly(
    described: Mapping[str, Any], tmp_path: Path
) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps(recording(described["machine"])), "utf-8")
    env = environment(tmp_path / "home", **{FAKE_HARDWARE: str(machine)})
    wrong = list(_wrong(described["expect"], env))
    assert not wrong


def _wrong(expect: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    """Yield what falls short of the right answer."""
    done = {name: run_program(*words, env=env) for name, words in COMMANDS.items()}
    done["json"] = run_program("explain", "--json", env=env)
    done["probe"] = run_program("probe", "--json", env=env)
    texts = {name: each.stdout + each.stderr for name, each in done.items()}
    texts["all"] = "".join(texts[name] for name in COMMANDS)
    data = done["json"].document.get("data") or {}
    yield from ("a traceback" for text in texts.values() if "Traceback" in text)
    wanted = expect["selected"]
    chosen = data.get("selected")
    if chosen not in (wanted if isinstance(wanted, list) else [wanted]):
        yield f"selected {chosen}"
    variants = {each["variant"]: each for each in data.get("variants", ())}
    for name, fits in expect.get("compatible", {}).items():
        if variants[name]["compatible"] is not fits:
            yield f"{name} {'does not fit' if fits else 'fits'}"
    device = variants.get(chosen, {}).get("device") or ""
    if not re.search(expect.get("device", ""), device):
        yield f"device {device}"
    if expect.get("transient") and not any(each["transient"] for each in data.get("problems", ())):
        yield "nothing is temporary"
    place = (done["probe"].document["data"]["hardware"].get("place") or {}).get("kind")
    if "place" in expect and place != expect["place"]:
        yield f"the place is {place}"
    for where, patterns in expect.get("say", {}).items():
        yield from (f"{where} lacks {each}" for each in patterns if not _in(each, texts[where]))
    for where, patterns in expect.get("not_say", {}).items():
        yield from (f"{where} says {each}" for each in patterns if _in(each, texts[where]))


def _in(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None
