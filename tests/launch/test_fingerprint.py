"""What a remembered answer of the drivers depends on."""

import sys
import time
from pathlib import Path

import pytest

from tsuku_llm.launch.plan import fingerprint
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint, seconds_asleep


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
