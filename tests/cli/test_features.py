"""``probe --format nfd``: a machine as the labels of a Kubernetes node."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import Result

from tsuku_llm.cli.render.features import PREFIX, value
from tsuku_llm.steps.opening import FAKE_HARDWARE

Program = Callable[..., Result]

SNAPSHOTS = sorted((Path(__file__).parents[1] / "snapshots").glob("*.json"))
LINE = re.compile(
    rf"{re.escape(PREFIX)}[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
)


def features(program: Program, snapshot: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (path,) = [path for path in SNAPSHOTS if path.stem == snapshot]
    monkeypatch.setenv(FAKE_HARDWARE, str(path))
    shown = program("probe", "--format", "nfd")
    assert (shown.code, shown.stdout[-1:]) == (0, "\n")
    lines = shown.stdout.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    return dict(line.removeprefix(PREFIX).split("=") for line in lines)


def test_a_machine_with_a_problem_says_its_name(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = features(program, "driver-updated-not-rebooted", monkeypatch)
    assert found["platform"] == "linux-amd64"
    assert found["problem.driver-updated-reboot"] == "true"
    assert found["backend"] == "cpu"
    assert "gpu.count" not in found


@pytest.mark.parametrize("other", [("--json",), ("--record", "machine.json")])
def test_it_is_a_form_of_its_own(program: Program, other: tuple[str, ...]) -> None:
    shown = program("probe", "--format", "nfd", *other)
    assert shown.code == 2
    assert "exclude each other" in shown.stderr + shown.stdout


@given(st.text(max_size=200))
def test_every_text_becomes_the_value_of_a_label(text: str) -> None:
    assert LINE.fullmatch(f"{PREFIX}key={value(text)}")


def test_what_can_be_a_label_stays_as_it_is() -> None:
    assert value("580.159.04") == "580.159.04"
    assert value("NVIDIA GeForce RTX 4090 (24 GB)") == "NVIDIA-GeForce-RTX-4090-24-GB"
