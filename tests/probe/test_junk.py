"""No answer, however wrong, makes a parser raise or a conclusion that selection cannot use."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import release

from tsuku_llm.choose.selection import Request, select
from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.machine.snapshot import Recording, ReplayHost, parse_recording
from tsuku_llm.probe import QUESTIONS, cpu, probe
from tsuku_llm.probe.facts import answers

CALLS = [
    *("open", "device", "icd", "platform", "loader", "libc.so.6", "libstdc++.so.6", "library"),
    *("cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "nvmlInit_v2"),
    *("nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "vkEnumerateInstanceVersion"),
    *("vkCreateInstance", "vkEnumeratePhysicalDevices", "hipRuntimeGetVersion"),
    *("hipGetDeviceCount", "zeInit", "zeDriverGet", "zeDriverGetApiVersion", "clGetPlatformIDs"),
]
KEYS = [
    *("code", "version", "count", "index", "name", "names", "errors", "error", "library", "file"),
    *("memory", "memories", "capability", "integrated", "uuid", "mig", "gfx", "type", "vendor"),
    *("device", "driver", "driver_id", "driver_info", "api", "heaps", "flags", "unified"),
    *("path", "banner", "versions", "slot", "kind"),
]
WORDS = st.sampled_from(
    [
        *("", "580.159.04", "x: cannot open shared object file", "GLIBC_2.34", "0x10de"),
        *("GLIBCXX_3.4.99999999999", "OpenCL 3.0 x", "release version 2.39.", "gfx\0"),
        "/lib64/ld-linux-x86-64.so.2",
    ]
)
SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 4, 5, -9, 100, 803, 999, 13000, 1 << 22, 1 << 63, 1 << 80])
    | st.floats()
    | st.text(max_size=8)
    | WORDS
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
LINES = st.builds(
    lambda call, rest: {"call": call, **rest},
    st.sampled_from(CALLS) | VALUES,
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
)
ENDS = st.sampled_from(["done", "done", "done", "timed-out", "signal 11", "exit 1", "not-started"])
ANSWERS = st.builds(
    DriverAnswer, st.lists(LINES, max_size=5).map(tuple), ENDS, st.none() | st.text(max_size=9)
)
TEXTS = st.none() | st.text(max_size=30) | WORDS
FILES = [
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/driver/nvidia/version", "/etc/os-release"),
    *("/sys/fs/cgroup/memory.max", "/etc/nv_tegra_release", "/proc/sys/kernel/osrelease"),
    "/sys/class/kfd/kfd/topology/nodes/1/properties",
]
MACHINES = st.builds(
    Recording,
    system=st.fixed_dictionaries(
        {"os": st.just("linux"), "machine": st.just("x86_64"), "libc": TEXTS}
    ),
    environment=st.dictionaries(st.just("CUDA_VISIBLE_DEVICES"), TEXTS),
    files=st.dictionaries(st.sampled_from(FILES), TEXTS),
    folders=st.just({"/sys/class/kfd/kfd/topology/nodes": ("0", "1", "x"), "/dev/dri": ("card0",)}),
    access=st.dictionaries(st.sampled_from(["/dev/nvidiactl", "/dev/kfd"]), st.just("r")),
    answers=st.dictionaries(st.sampled_from(QUESTIONS["linux"]), ANSWERS),
)


@given(MACHINES)
def test_any_machine_is_probed_and_every_variant_judged(recording: Recording) -> None:
    hardware = probe(ReplayHost(recording, "junk"))
    selection = select(release(), hardware, Request())
    assert len(selection.compatible) + len(selection.rejected) == 5
    for api in hardware.apis:
        assert all(isinstance(item.result, str) for item in api.evidence)
        assert not (api.problem and api.hardware_gpus)
        assert all(gpu.memory is None or gpu.memory > 0 for gpu in api.gpus)


@given(st.text())
def test_any_text_in_cpuinfo_is_parsed(text: str) -> None:
    cpu.parse_cpuinfo(text, "amd64")
    cpu.parse_memory(text, text)


@given(VALUES)
def test_any_value_in_the_place_of_another_is_parsed(value: Any) -> None:
    number = answers.integer(value)
    assert number is None or isinstance(number, int)
    text = answers.words(value)
    assert text is None or (text == text.strip() and "\n" not in text)


SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
LONG = {"digits": "9" * 5000, "letters": "x" * 5000, "lines": "\n" * 5000, "dots": "1." * 2500}


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each text in a recording."""
    if isinstance(value, str):
        yield place
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        yield from texts(inner, (*place, key))


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize(
    "name", ["two-h200", "strix-halo-gfx1151", "windows-11-rtx-4090", "macos-26-m4"]
)
def test_each_text_of_a_recording_may_be_endless(name: str, long: str) -> None:
    """A number of thousands of digits, too, which Python refuses to read."""
    whole = json.loads((SNAPSHOTS / f"{name}.json").read_text(encoding="utf-8"))
    # One of the lines of a list stands for all.
    places = {tuple(0 if isinstance(k, int) else k for k in each): each for each in texts(whole)}
    for place in places.values():
        changed = copy.deepcopy(whole)
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = LONG[long]
        recording = parse_recording(json.dumps(changed).encode())
        assert len(probe(ReplayHost(recording, "long")).platform) < 100
