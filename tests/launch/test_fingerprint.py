"""What a remembered answer of the drivers depends on."""

import sys

import pytest

from tsuku_llm.launch.fingerprint import driver_fingerprint


def test_nothing_is_remembered_where_drivers_change_unseen() -> None:
    assert (driver_fingerprint({}) is None) == (sys.platform != "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
def test_it_is_the_same_until_something_is_different() -> None:
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
        ("HOME", False),
        ("LLAMA_ARG_CTX_SIZE", False),
    ],
)
def test_the_variables_that_drivers_listen_to_count(name: str, counts: bool) -> None:
    assert (driver_fingerprint({name: "x"}) != driver_fingerprint({})) == counts
