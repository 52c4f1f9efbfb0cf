"""The free main memory, from files as kernels write them."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.memory.main_memory import main_memory, memory_groups, parse_main_memory

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
    found = parse_main_memory(MEMINFO, [(limit, use)])
    assert (found.free, found.total) == (free, total)


@pytest.mark.parametrize("text", ["", "MemAvailable: many kB", "MemTotal", "\0\n:::\n"])
def test_what_the_kernel_does_not_tell_is_unknown(text: str) -> None:
    found = parse_main_memory(text, [])
    assert (found.free, found.total) == (None, None)


def test_this_machine_has_memory() -> None:
    found = main_memory()
    assert found.name == "main memory"
    assert found.total is None or found.total > 0
    if sys.platform in ("linux", "win32"):
        assert found.total
        assert 0 < (found.free or 0) <= found.total


# Lines of /proc/self/mountinfo: Documentation/filesystems/proc.rst of the kernel, 3.5.
V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
# Docker with version 1, without a name space of control groups: the mount shows its own part.
DOCKER = V1.replace("0:32 / ", "0:32 /docker/0abc ")
UNIT = "/system.slice/tsuku-llm.service"

GIB = 1 << 30

TREES = {
    # systemd: MemoryMax= of a service (systemd.resource-control), with version 2.
    "unit": (
        f"0::{UNIT}\n",
        V2,
        {f"{UNIT}/memory.max": f"{4 * GIB}", f"{UNIT}/memory.stat": f"anon {GIB}\nfile 9\n"},
        (3 * GIB, 4 * GIB),
    ),
    # A slice around it is smaller, and nearly used up by its other services.
    "slice": (
        f"0::{UNIT}\n",
        V2,
        {
            f"{UNIT}/memory.max": f"{4 * GIB}",
            f"{UNIT}/memory.stat": "anon 0\n",
            "/system.slice/memory.max": f"{2 * GIB}",
            "/system.slice/memory.stat": f"anon {2 * GIB - 4096}\n",
        },
        (4096, 2 * GIB),
    ),
    "no-limit": (f"0::{UNIT}\n", V2, {f"{UNIT}/memory.max": "max\n"}, None),
    # Another service is no concern of ours.
    "neighbour": (f"0::{UNIT}\n", V2, {"/system.slice/other/memory.max": "4096"}, None),
    # A container with its own name space sees its group as the root.
    "container": ("0::/\n", V2, {"/memory.max": f"{GIB}"}, (GIB, GIB)),
    # The form of version 1, with the number that means none at its root.
    "version-1": (
        "4:memory:/jobs/7\n1:cpu:/elsewhere\n0::/\n",
        V1,
        {
            "/memory/memory.limit_in_bytes": "9223372036854771712",
            "/memory/jobs/memory.limit_in_bytes": f"{2 * GIB}",
            "/memory/jobs/memory.stat": f"rss 5\ntotal_rss {GIB}\n",
            "/memory/jobs/7/memory.limit_in_bytes": f"{4 * GIB}",
            "/cpu/elsewhere/memory.limit_in_bytes": "1",
        },
        (GIB, 2 * GIB),
    ),
    "docker-version-1": (
        "4:memory:/docker/0abc/deeper\n",
        DOCKER,
        {"/memory/deeper/memory.limit_in_bytes": f"{GIB}"},
        (GIB, GIB),
    ),
    # A path that leads out of the mount (cgroup_namespaces(7)): only the mount itself counts.
    "outside": ("0::/../../other\n", V2, {"/memory.max": f"{GIB}"}, (GIB, GIB)),
    "space": (
        "0::/a b\n",
        V2.replace("/sys/fs/cgroup", r"/sys/fs/cgroup\040x"),
        {" x/a b/memory.max": f"{GIB}"},
        (GIB, GIB),
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize(("groups", "mounts", "files", "expected"), TREES.values(), ids=TREES)
def test_the_smallest_limit_on_the_way_to_the_root_counts(
    groups: str,
    mounts: str,
    files: Mapping[str, str],
    expected: tuple[int, int] | None,
    tmp_path: Path,
) -> None:
    proc = {"meminfo": MEMINFO, "self/cgroup": groups, "self/mountinfo": mounts}
    named = {f"proc/{name}": text for name, text in proc.items()}
    named |= {f"sys/fs/cgroup{name}": text for name, text in files.items()}
    for name, text in named.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = main_memory(tmp_path)
    assert (found.free, found.total) == (expected or (22311892 << 10, 24546532 << 10))


@given(st.text(), st.text())
def test_any_text_of_the_kernel_is_read_without_an_error(groups: str, mounts: str) -> None:
    for one, two in ((groups, mounts), (f"0::/{groups}", V2), ("4:memory:/a", f"{V1}{mounts}")):
        assert all(folder.find("/../") < 0 for folder, _ in memory_groups(one, two))
