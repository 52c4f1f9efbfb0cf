"""A recorded machine in the place of this one: in every command that asks, and never unsaid."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.program import Result
from support.stored import install as put

from tsuku_llm.config.paths import Paths
from tsuku_llm.steps.session import FAKE_HARDWARE, STRICT
from tsuku_llm.store.store import Store

Program = Callable[..., Result]
AsJson = Callable[..., Any]

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
NAME = "driver-updated-not-rebooted.json"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FAKE_HARDWARE, str(SNAPSHOTS / NAME))
    return NAME


ASKING = [
    ("probe",),
    ("explain",),
    ("explain", "--backend", "cuda"),
    ("backends",),
    ("doctor",),
    ("install", "--dry-run"),
]


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_every_output_says_that_the_machine_is_simulated(
    words: tuple[str, ...], simulated: str, program: Program, as_json: AsJson
) -> None:
    shown = program(*words)
    assert simulated in shown.stdout
    assert shown.stderr.startswith(f"the hardware is simulated: {FAKE_HARDWARE}=")
    told = as_json(*words)
    assert told["simulated"] == simulated
    of_data = told["data"].get("hardware", told["data"])
    assert of_data["simulated"] == simulated


def test_an_error_says_so_too(simulated: str, program: Program, as_json: AsJson) -> None:
    words = ("install", "--dry-run", "--backend", "cuda")
    told = as_json(*words)
    assert (told["exit_code"], told["simulated"]) == (3, simulated)
    assert "the hardware is simulated" in program(*words).stderr


def test_a_command_that_does_not_probe_says_so_too(simulated: str, as_json: AsJson) -> None:
    assert as_json("list")["simulated"] == simulated


def test_the_real_machine_is_not_called_simulated(as_json: AsJson, program: Program) -> None:
    assert "simulated" not in as_json("explain")
    assert "simulated" not in program("explain").stderr


@pytest.mark.parametrize("value", ["1", "yes"])
@pytest.mark.parametrize("words", [*ASKING, ("list",)], ids=" ".join)
def test_strict_refuses_a_simulated_machine(
    words: tuple[str, ...],
    value: str,
    simulated: str,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STRICT, value)
    result = program(*words)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error[bad-usage]: ")
    assert simulated in result.stderr


@pytest.mark.parametrize("value", ["", "0"])
def test_a_simulated_machine_is_allowed_without_strict(
    value: str, simulated: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STRICT, value)
    assert simulated in program("explain").stdout


def test_strict_accepts_the_real_machine(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    assert program("explain").code == 0


def test_a_file_that_is_not_a_recording_is_exit_code_2(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_HARDWARE, str(tmp_path / "missing.json"))
    result = program("explain")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error[bad-snapshot]: ")


def test_the_variant_for_the_recorded_machine_is_chosen_and_named(
    simulated: str, as_json: AsJson
) -> None:
    data = as_json("explain")["data"]
    assert (data["detected"], data["selected"]) == (["cpu"], "cpu")
    reasons = {each["variant"]: each["code"] for each in data["variants"]}
    assert reasons["cuda-12.8"] == "driver-updated-reboot"
    problems = {each["slug"]: each for each in data["problems"]}
    assert problems["driver-updated-reboot"]["fix"]
    assert problems["driver-updated-reboot"]["transient"] is True
    assert data["simulated"] == simulated


def test_the_machine_of_the_flag_overrides_the_variable(
    simulated: str, program: Program, as_json: AsJson, tmp_path: Path
) -> None:
    other = shutil.copy(SNAPSHOTS / "amd-card-without-rocm.json", tmp_path / "other.json")
    told = as_json("backends", "--hardware", str(other))
    assert (told["data"]["simulated"], told["simulated"]) == ("other.json", simulated)
    assert told["data"]["selected"] == "vulkan"
    shown = program("backends", "--hardware", str(other)).stdout
    assert "fits the simulated machine other.json" in shown.splitlines()[0]


# --- backends ----------------------------------------------------------------------------


def test_backends_shows_explain_plus_installed_versions(
    simulated: str, as_json: AsJson, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained, matrix = as_json("explain")["data"], as_json("backends")["data"]
    assert matrix == explained
    assert (matrix["active"], matrix["model"]) == (None, None)
    assert not any(each["state"] for each in matrix["variants"])
    shown = program("backends").stdout
    assert simulated in shown
    for each in matrix["variants"]:
        assert each["variant"] in shown
        assert (each["reason"] or "fits: ") in shown
    monkeypatch.setenv("TSUKU_LLM_BACKEND", "cuda-99")
    assert program("backends").stdout == shown, "whatever backend is asked for"


def test_an_active_version_of_another_release_is_named(
    program: Program, as_json: AsJson, tsuku_home: Path
) -> None:
    tsuku_home.mkdir(mode=0o755)
    installed = put(Store(Paths.from_environ({"TSUKU_HOME": str(tsuku_home)}).data))
    data = as_json("backends")["data"]
    assert data["active"]["id"] == installed.id
    assert not any(each["state"] for each in data["variants"])
    assert program("backends").stdout.splitlines()[-1] == "active: cpu of b100 (0.1.0)"
    other = SNAPSHOTS / "amd-card-without-rocm.json"
    assert as_json("backends", "--hardware", str(other))["data"]["active"] is None


@pytest.mark.parametrize("words", [("--release", "b11347"), ("--channel", "nightly")], ids=" ".join)
def test_backends_shows_the_requested_release(words: tuple[str, ...], as_json: AsJson) -> None:
    assert (
        as_json("backends", *words)["data"]["release"]
        == as_json("explain", *words)["data"]["release"]
    )
