"""The free main memory, from files as kernels write them."""

import sys

import pytest

from tsuku_llm.launch.memory.main_memory import main_memory, parse_main_memory

MEMINFO = """\
MemTotal:       24546532 kB
MemFree:         1093220 kB
MemAvailable:   22311892 kB
Buffers:          103120 kB
HugePages_Total:       0
"""
STAT = "anon 4294967296\nfile 1610612736\nkernel 49152\n"


@pytest.mark.parametrize(
    ("limit", "use", "free", "total"),
    [
        ("", "", 22311892 << 10, 24546532 << 10),
        ("max\n", STAT, 22311892 << 10, 24546532 << 10),
        # What the kernel caches of files is not in use.
        (f"{8 << 30}\n", STAT, 4 << 30, 8 << 30),
        (f"{1 << 30}\n", STAT, 0, 1 << 30),
        (f"{1 << 50}\n", STAT, 22311892 << 10, 24546532 << 10),
    ],
)
def test_a_container_has_what_its_limit_leaves(limit: str, use: str, free: int, total: int) -> None:
    found = parse_main_memory(MEMINFO, limit, use)
    assert (found.free, found.total) == (free, total)


@pytest.mark.parametrize("text", ["", "MemAvailable: many kB", "MemTotal", "\0\n:::\n"])
def test_what_the_kernel_does_not_tell_is_unknown(text: str) -> None:
    found = parse_main_memory(text, "", "")
    assert (found.free, found.total) == (None, None)


def test_this_machine_has_memory() -> None:
    found = main_memory()
    assert found.name == "main memory"
    assert found.total is None or found.total > 0
    if sys.platform in ("linux", "win32"):
        assert found.total
        assert 0 < (found.free or 0) <= found.total
