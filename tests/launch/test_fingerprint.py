"""What a remembered answer of the drivers depends on."""

import sys
import time
from pathlib import Path

import pytest

from tsuku_llm.launch.plan import fingerprint
from tsuku_llm.launch.plan.fingerprint import (
    SIMULATED,
    choice_digest,
    driver_fingerprint,
    seconds_asleep,
)
from tsuku_llm.probe import amd, nvidia
from tsuku_llm.steps.session import FAKE_HARDWARE


def test_without_visible_drivers_nothing_is_remembered() -> None:
    assert (driver_fingerprint({}) is None) == (sys.platform != "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_the_fingerprint_changes_with_the_drivers() -> None:
    assert driver_fingerprint({}) == driver_fingerprint({})
    facts = driver_fingerprint({})
    assert facts
    assert any(fact.startswith("/proc/sys/kernel/random/boot_id: ") for fact in facts)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("VK_DRIVER_FILES", True),
        ("GGML_VK_VISIBLE_DEVICES", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("HSA_OVERRIDE_GFX_VERSION", True),
        ("LD_LIBRARY_PATH", True),
        ("DRI_PRIME", True),
        ("__NV_PRIME_RENDER_OFFLOAD", True),
        ("HOME", False),
        ("LLAMA_ARG_CTX_SIZE", False),
    ],
)
def test_the_variables_that_drivers_read_count(name: str, counts: bool) -> None:
    assert (driver_fingerprint({name: "x"}) != driver_fingerprint({})) == counts


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_a_library_in_a_folder_of_the_search_path_changes_the_fingerprint(tmp_path: Path) -> None:
    env = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}
    before = driver_fingerprint(env)
    assert driver_fingerprint(env) == before
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    assert driver_fingerprint(env) != before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_another_recording_is_another_machine(tmp_path: Path) -> None:
    env = {FAKE_HARDWARE: str(tmp_path / "machine.json")}
    absent = driver_fingerprint(env)
    (tmp_path / "machine.json").write_text("{}")
    assert SIMULATED == FAKE_HARDWARE
    assert driver_fingerprint(env) != absent


def test_a_choice_outlives_a_boot_and_a_sleep() -> None:
    facts = ("/proc/sys/kernel/random/boot_id: a", "asleep: 7", "/dev/dri: card0", "CUDA_X=1")
    digest = choice_digest(facts)
    assert choice_digest(("/proc/sys/kernel/random/boot_id: b", "asleep: 0", *facts[2:])) == digest
    assert choice_digest((*facts[:2], "/dev/dri: card0 card1", facts[3])) != digest
    assert choice_digest(facts[:3]) != digest
    assert choice_digest(None) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_X19_a_sleep_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that counts the sleep runs ahead of the one that does not."""
    real = time.clock_gettime

    def after_a_sleep(clock: int) -> float:
        return real(clock) + (3600 if clock == time.CLOCK_BOOTTIME else 0)

    before, slept = driver_fingerprint({}), seconds_asleep()
    monkeypatch.setattr(time, "clock_gettime", after_a_sleep)
    assert driver_fingerprint({}) != before
    assert seconds_asleep() - slept in (3599, 3600, 3601)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_X19_a_device_that_cannot_be_opened_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container's device rules were loaded again: the name is there, the open fails."""
    node = tmp_path / "renderD128"
    node.write_bytes(b"")
    monkeypatch.setattr(fingerprint, "_OPENED", ((str(tmp_path), ("renderD",)),))
    before = driver_fingerprint({})
    assert before
    assert f"{node}: " in before
    node.unlink()
    node.mkdir()
    refused = driver_fingerprint({})
    assert refused
    assert f"{node}: EISDIR" in refused


def test_every_device_file_that_cuda_opens_counts() -> None:
    """A container that was given /dev/nvidia-uvm later: nothing else of it has changed."""
    names = dict(fingerprint._OPENED)["/dev"]
    for path in (nvidia.CONTROL_DEVICE, nvidia.UVM_DEVICE, amd.COMPUTE_DEVICE):
        assert path.removeprefix("/dev/").startswith(names)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_without_a_cache_of_libraries_their_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """musl's loader has no cache: a driver's package changes the folder alone."""
    cache, folder = tmp_path / "ld.so.cache", tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(fingerprint, "_LIBRARIES", (str(cache), str(folder)))
    before = driver_fingerprint({})
    (folder / "libvulkan.so.1").write_bytes(b"")
    assert driver_fingerprint({}) != before
    cache.write_bytes(b"")
    before = driver_fingerprint({})
    (folder / "libother.so.1").write_bytes(b"")
    assert driver_fingerprint({}) == before
