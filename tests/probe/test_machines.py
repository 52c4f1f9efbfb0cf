"""Every recorded or composed machine: what is detected, named, selected, and refused why."""

import json
from pathlib import Path
from typing import Any

import pytest

from tsuku_llm.catalog.manifest import Release, parse_release
from tsuku_llm.choose.selection import Request, Selection, select
from tsuku_llm.ground.errors import SelectionError
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.trust import VerifiedBytes

ROOT = Path(__file__).parents[2]
SNAPSHOTS = sorted((ROOT / "tests" / "snapshots").glob("*.json"))
(PUBLISHED,) = (ROOT / "manifests" / "targets" / "releases").glob("*.b11429.json")
RELEASE = parse_release(VerifiedBytes(PUBLISHED.read_bytes()))
EXPECTATIONS = {"detected", "problems", "selected", "refused", "device", "level"}


def machine(path: Path) -> tuple[Hardware, Selection, Any]:
    host = ReplayHost.load(path)
    hardware = probe(host)
    return hardware, select(RELEASE, hardware, Request()), host.recording.expect


@pytest.fixture(params=SNAPSHOTS, ids=lambda path: path.stem)
def known(request: pytest.FixtureRequest) -> tuple[Hardware, Selection, Any]:
    return machine(request.param)


def with_musl() -> Release:
    """The release, with a build for musl beside it on each platform of Linux."""
    document = json.loads(PUBLISHED.read_text("utf-8"))
    for name, platform in document["platforms"].items():
        if name.startswith("linux-"):
            musl = {**platform["variants"]["cpu"], "requires": {"musl": True}}
            platform["variants"]["cpu-musl"] = musl
    return parse_release(VerifiedBytes(json.dumps(document).encode()))


WITH_MUSL = with_musl()


def test_there_are_at_least_thirty_machines() -> None:
    assert len(SNAPSHOTS) >= 30


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_each_recording_has_a_source_and_expectations(path: Path) -> None:
    recording = ReplayHost.load(path).recording
    assert recording.source
    assert recording.expect
    assert recording.expect.keys() <= EXPECTATIONS
    assert {"detected", "problems", "selected", "refused"} <= recording.expect.keys()


def test_backends_are_detected(known: tuple[Hardware, Selection, Any]) -> None:
    _, selection, expect = known
    assert list(selection.detected) == expect["detected"]


def test_situations_are_named(known: tuple[Hardware, Selection, Any]) -> None:
    hardware, _, expect = known
    assert [problem.slug for problem in hardware.all_problems] == expect["problems"]


def test_the_right_variant_is_selected(known: tuple[Hardware, Selection, Any]) -> None:
    _, selection, expect = known
    if expect["selected"] is None:
        with pytest.raises(SelectionError):
            _ = selection.selected
        return
    assert selection.selected.variant.name == expect["selected"]
    if "device" in expect:
        assert selection.selected.gpu
        assert selection.selected.gpu.name == expect["device"]


def test_the_others_are_refused_for_the_right_reason(
    known: tuple[Hardware, Selection, Any],
) -> None:
    _, selection, expect = known
    reasons = {refused.variant.name: refused.reason.slug for refused in selection.rejected}
    assert expect["refused"].items() <= reasons.items()


def test_a_build_for_musl_is_chosen_where_musl_is_and_only_there(
    known: tuple[Hardware, Selection, Any],
) -> None:
    hardware, before, _ = known
    after = select(WITH_MUSL, hardware, Request())
    fitting = [candidate.variant.name for candidate in after.compatible]
    if hardware.libc and hardware.libc.name == "musl":
        assert fitting == ["cpu-musl"]
        return
    assert fitting == [candidate.variant.name for candidate in before.compatible]
    if hardware.os == "linux":
        reasons = {refused.variant.name: refused.reason.slug for refused in after.rejected}
        assert reasons["cpu-musl"] == "musl"


@pytest.mark.parametrize(
    ("build", "variant"),
    [
        ("b11146", "opencl-adreno"),
        ("b11347", "opencl-adreno"),
        # Upstream published none for Adreno of this one (ci/release/facts/upstream-releases.json).
        ("b11429", "cpu"),
        ("b11541", "opencl-adreno"),
    ],
)
def test_a_snapdragon_gets_upstreams_build_for_adreno_if_there_is_one(
    build: str, variant: str
) -> None:
    (published,) = PUBLISHED.parent.glob(f"*.{build}.json")
    release = parse_release(VerifiedBytes(published.read_bytes()))
    hardware = machine(ROOT / "tests" / "snapshots" / "windows-arm64-adreno.json")[0]
    assert select(release, hardware, Request()).selected.variant.name == variant


def test_a_device_that_the_driver_knows_has_its_memory(
    known: tuple[Hardware, Selection, Any],
) -> None:
    hardware, _, expect = known
    assert all(gpu.memory for api in hardware.apis for gpu in api.gpus)
    if "level" in expect:
        assert hardware.cpu
        assert hardware.cpu.level == expect["level"]
