"""What NVIDIA's management library counts, asked in a child that loads a stub of it."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stub_drivers import StubDrivers

from tsuku_llm.launch.gpu import nvml
from tsuku_llm.launch.gpu.nvml import (
    GpuMemory,
    NvidiaDevice,
    NvidiaLine,
    NvidiaWatch,
    gpu_memory,
    parse_memory,
    parse_watched,
    with_holders,
)
from tsuku_llm.launch.memory.fit import Card
from tsuku_llm.launch.plan.report import DriverFault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stub is Linux's")

GIB = 1 << 30


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a server on a machine with the stub and a device node."""
    monkeypatch.setattr(nvml, "_SIGNS", ("/dev/null",))
    folder = StubDrivers(tmp_path).library("nvml").parent
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder)}


def ask(environ: dict[str, str]) -> GpuMemory | None:
    return gpu_memory(environ)


def bare(found: GpuMemory) -> GpuMemory:
    """The memory alone."""
    return found._replace(complete=False)


def told(used: int, processes: dict[int, int | None]) -> GpuMemory:
    device = NvidiaDevice("GPU 0", "NVIDIA H200", 128 * GIB, used, processes)
    return GpuMemory((device,), "580.159.04")


def test_the_memory_of_the_devices_and_of_each_process(stub: dict[str, str]) -> None:
    found = ask({**stub, "STUB_nvml_pid": "77", "STUB_nvml_used": str(5 * GIB)})
    assert found
    assert bare(found) == told(5 * GIB, {77: 5 * GIB})


def test_the_memory_of_two_devices_is_added(stub: dict[str, str]) -> None:
    settings = {"STUB_nvml_count": "2", "STUB_nvml_pid": "77", "STUB_nvml_used": str(GIB)}
    found = ask({**stub, **settings})
    assert found
    assert (found.total, found.used, found.processes) == (256 * GIB, 2 * GIB, {77: 2 * GIB})


@pytest.mark.parametrize(
    "settings",
    [
        {"STUB_nvmlInit_v2": "9"},
        {"STUB_nvmlInit_v2": "crash"},
        {"STUB_nvmlInit_v2": "noise", "STUB_nvmlDeviceGetMemoryInfo": "crash"},
        {"STUB_nvmlDeviceGetMemoryInfo": "3"},
        {"STUB_nvmlDeviceGetHandleByIndex_v2": "15"},
        {"STUB_nvml_count": "0"},
        {"LD_LIBRARY_PATH": "/nowhere"},
    ],
)
def test_a_library_that_fails_or_crashes_gives_no_answer(
    settings: dict[str, str], stub: dict[str, str]
) -> None:
    assert ask({**stub, **settings}) is None


def test_a_refused_list_of_processes_is_empty(stub: dict[str, str]) -> None:
    refused = {"STUB_nvmlDeviceGetComputeRunningProcesses_v3": "3", "STUB_nvml_used": "7"}
    found = ask({**stub, **refused})
    # A refused list is not a list in which our process is missing.
    assert found
    assert not found.complete
    assert bare(found) == told(7, {})
    assert found.of((77,)) is None


def test_without_a_device_node_nothing_is_asked(
    stub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_SIGNS", ("/nowhere",))
    assert gpu_memory(stub) is None


def test_a_client_of_the_multi_process_service_is_not_missing(stub: dict[str, str]) -> None:
    settings = {"STUB_nvml_pid": "77", "STUB_nvml_used": str(5 * GIB), "STUB_nvml_mps": "1"}
    found = ask({**stub, **settings})
    assert found
    assert found._replace(complete=True).of((77,)) == 5 * GIB


NONSENSE = (1 << 64) - 2


def test_a_size_that_no_device_has_is_not_known(stub: dict[str, str]) -> None:
    """It could be written into the record of a server, and not be read again."""
    assert ask({**stub, "STUB_nvml_used": str(-2)}) is None
    found = ask({**stub, "STUB_nvml_pid": "77", "STUB_nvml_process": str(NONSENSE)})
    assert found
    assert found.processes == {77: None}


def test_a_driver_that_prints_does_not_hide_the_answer(stub: dict[str, str]) -> None:
    found = ask({**stub, "STUB_nvmlInit_v2": "noise"})
    assert found
    assert bare(found) == told(0, {})


NOT_TOLD = str((1 << 64) - 1)


def test_memory_that_the_driver_does_not_tell_is_not_zero(stub: dict[str, str]) -> None:
    """In WSL, and in instances of a divided card."""
    found = ask({**stub, "STUB_nvml_pid": "77", "STUB_nvml_process": NOT_TOLD})
    assert found
    assert found.processes == {77: None}
    assert found.of((77,)) is None


@pytest.mark.parametrize(
    ("complete", "pids", "memory"),
    [
        (True, (5,), 0),
        (False, (5,), None),
        (False, (5, 77), 300),
        (False, (77, 78), 700),
        (True, (79,), None),
        (False, (77, 79), 300),
    ],
)
def test_the_memory_of_a_server_and_its_children(
    complete: bool, pids: tuple[int, ...], memory: int | None
) -> None:
    counted = told(9, {77: 300, 78: 400, 79: None})._replace(complete=complete)
    assert counted.of(pids) == memory


@pytest.mark.parametrize(
    ("settings", "working"),
    [
        ({}, set()),
        ({"STUB_nvml_sm": "35"}, {77}),
        ({"STUB_nvml_sm": "0"}, set()),
        ({"STUB_nvml_sm": "35", "STUB_nvml_sample": "999"}, set()),
        ({"STUB_nvmlDeviceGetProcessUtilization": "6"}, set()),
        ({"STUB_nvmlDeviceGetProcessUtilization": "3"}, set()),
    ],
)
def test_the_processes_for_which_the_engines_worked(
    settings: dict[str, str], working: set[int], stub: dict[str, str]
) -> None:
    """Also of drivers that return samples from before the time that was asked for."""
    since = 1000 if settings else 0
    found = gpu_memory({**stub, "STUB_nvml_pid": "77", **settings}, since=since)
    assert found
    assert found.working == working


@pytest.mark.parametrize(
    ("settings", "pids", "worked"),
    [
        ({"STUB_nvml_sm": "35"}, (77,), True),
        ({"STUB_nvml_sm": "35", "STUB_nvml_gpu": "0"}, (77,), True),
        # Another process works, or nobody.
        ({"STUB_nvml_sm": "35"}, (78,), False),
        ({"STUB_nvml_sm": "0"}, (77,), False),
        ({"STUB_nvmlDeviceGetProcessUtilization": "6"}, (77,), False),
        # A driver that does not count by process: only a device that does nothing tells.
        ({"STUB_nvmlDeviceGetProcessUtilization": "3"}, (77,), None),
        ({"STUB_nvmlDeviceGetProcessUtilization": "3", "STUB_nvml_gpu": "0"}, (77,), False),
        ({"STUB_nvmlDeviceGetProcessUtilization": "3", "STUB_nvml_gpu": "1"}, (77,), None),
        (
            {
                "STUB_nvmlDeviceGetProcessUtilization": "3",
                "STUB_nvmlDeviceGetUtilizationRates": "3",
            },
            (77,),
            None,
        ),
    ],
)
def test_whether_the_engines_worked_for_a_server(
    settings: dict[str, str], pids: tuple[int, ...], worked: bool | None, stub: dict[str, str]
) -> None:
    environ = {**stub, "STUB_nvml_pid": "77", "STUB_nvml_gpu": "100", **settings}
    found = gpu_memory(environ, since=1000)
    assert found
    assert found._replace(complete=True).did_work(pids) is worked
    # In a container the ids are another namespace's, and ours is in no list.
    elsewhere = found._replace(complete=False)
    assert elsewhere.did_work((99,)) is (False if found.idle else None)


def test_a_process_is_on_the_devices_that_list_it(stub: dict[str, str]) -> None:
    settings = {"STUB_nvml_count": "2", "STUB_nvml_pid": "77", "STUB_nvml_on": "1"}
    found = ask({**stub, **settings})
    assert found
    assert {each.told: set(each.processes) for each in found.devices} == {
        "GPU 0": set(),
        "GPU 1": {77},
    }


def first_lines(environ: dict[str, str], count: int) -> list[NvidiaLine]:
    """The first lines of the child that watches; it is given time by giving way to it."""
    watch, found, end = NvidiaWatch(environ), [], time.monotonic() + 60
    try:
        while len(found) < count and time.monotonic() < end:
            found += watch.lines()
            os.sched_yield()
    finally:
        watch.close()
    return found


def test_a_fault_of_a_device_is_heard_at_once(stub: dict[str, str]) -> None:
    """The child would tell the memory again only after half a minute."""
    settings = {"STUB_nvml_pid": "77", "STUB_nvml_used": str(GIB), "STUB_nvml_xid": "79"}
    memory, fault = first_lines({**stub, **settings}, 2)
    assert memory.memory
    assert memory.memory.processes == {77: GIB}
    assert fault == NvidiaLine(faults=(DriverFault(79, "GPU 0"),))


def test_a_device_that_the_driver_lost_is_told(stub: dict[str, str]) -> None:
    (line,) = first_lines({**stub, "STUB_nvmlDeviceGetMemoryInfo": "15"}, 1)
    assert line.memory is None
    assert line.faults == (DriverFault(None, "GPU 0", "the driver has lost it"),)


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_without_events_the_memory_is_told_all_the_same(
    function: str, stub: dict[str, str]
) -> None:
    (line,) = first_lines({**stub, f"STUB_{function}": "3"}, 1)
    assert line.memory


def test_a_watch_without_the_library_hears_nothing_and_ends() -> None:
    watch = NvidiaWatch({"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/nowhere"})
    assert watch.lines() == ()
    watch.close()


def test_a_child_that_crashed_is_collected_and_its_answer_is_old(
    stub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of the driver under a server that runs: the library does not fit any more."""
    others = children_of_us()  # such as a server of the tests
    watch = NvidiaWatch({**stub, "STUB_nvmlEventSetWait_v2": "crash"})
    try:
        end = time.monotonic() + 60
        found: list[NvidiaLine] = []
        while children_of_us() - others and time.monotonic() < end:
            found += watch.lines()
            os.sched_yield()
        assert children_of_us() <= others
        assert len([line for line in found if line.memory]) == 1
        assert watch.lines() == ()
        assert not watch.is_silent
        monkeypatch.setattr(nvml, "_SILENT", 0.0)
        assert watch.is_silent
        # Later another one is started. It may have crashed, too, before we look.
        monkeypatch.setattr(nvml, "_AGAIN", 0.0)
        again: list[NvidiaLine] = []
        while not any(line.memory for line in again) and time.monotonic() < end:
            again += watch.lines()
            os.sched_yield()
        assert any(line.memory for line in again)
    finally:
        watch.close()
    assert children_of_us() <= others


def children_of_us() -> set[str]:
    """Our child processes, those included that nobody has collected."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_an_event_of_another_kind_is_no_fault(stub: dict[str, str], tmp_path: Path) -> None:
    """Such as a change of the clock; it would pass for an ECC error."""
    calls = tmp_path / "calls"
    settings = {"STUB_nvml_xid": "79", "STUB_nvml_event": "0x10", "STUB_calls": str(calls)}
    watch, found, end = NvidiaWatch({**stub, **settings}), [], time.monotonic() + 60
    try:
        # At the second call the first event has been told, if it is.
        while time.monotonic() < end:
            handled = calls.exists() and calls.read_text().count("nvmlEventSetWait_v2\n") > 1
            found += watch.lines()
            if handled:
                break
    finally:
        watch.close()
    assert handled
    assert [line for line in found if line.memory]
    assert not [line for line in found if line.faults]


@given(st.text() | st.sampled_from(['{"fault": "x", "device": []}', '{"lost": 3}', '{"lost": []}']))
def test_any_line_of_the_child_is_parsed_or_ignored(text: str) -> None:
    assert parse_watched(text) == NvidiaLine()


@given(st.text())
def test_any_text_is_parsed_or_ignored(text: str) -> None:
    assert parse_memory(text) is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", '{"devices": [], "driver": ""}', '{"devices": [1], "driver": ""}']
)
def test_a_document_of_another_shape_is_ignored(text: str) -> None:
    assert parse_memory(text) is None


# --- what the library adds to the cards of a build's list --------------------------------------


def listed(name: str, free: int, called: str = "NVIDIA H200") -> Card:
    return Card(name, called, free * GIB, 140 * GIB)


def counted(*used: int, complete: bool = True, called: str = "NVIDIA H200") -> GpuMemory:
    """Devices of 140 GiB of which process 1 holds so much."""
    return GpuMemory(
        tuple(
            NvidiaDevice(f"GPU {at}", called, 140 * GIB, each * GIB, {1: each * GIB})
            for at, each in enumerate(used)
        ),
        "580",
        complete,
    )


def added(cards: tuple[Card, ...], seen: GpuMemory) -> list[tuple[str, int, int]]:
    """Name, free GiB and held GiB of each card, in the order of the list."""
    found = with_holders(cards, seen)
    return [
        (each.name, (each.free or 0) // GIB, sum(held.memory for held in each.holders) // GIB)
        for each in found
    ]


def test_the_holder_of_a_filled_card_is_named() -> None:
    (found,) = with_holders((listed("CUDA0", 1),), counted(139))
    (holder,) = found.holders
    assert (holder.pid, holder.memory) == (1, 139 * GIB)
    assert holder.name == Path("/proc/1/comm").read_text("utf-8").strip()


def test_equal_cards_are_told_apart_by_their_free_memory() -> None:
    """Vulkan's order is not that of the bus."""
    cards = (listed("Vulkan0", 100), listed("Vulkan1", 1))
    assert added(cards, counted(139, 40)) == [("Vulkan0", 100, 40), ("Vulkan1", 1, 139)]


def test_a_driver_that_calls_all_memory_free_is_corrected() -> None:
    cards = (listed("Vulkan0", 140), listed("Vulkan1", 140))
    assert added(cards, counted(139, 0)) == [("Vulkan0", 1, 139), ("Vulkan1", 140, 0)]


@pytest.mark.parametrize(
    ("cards", "seen"),
    [
        ((listed("CUDA0", 140),), counted(139, 0)),
        ((listed("CUDA0", 140, "AMD Radeon"),), counted(139)),
        ((listed("CUDA0", 140),), counted(139, called="NVIDIA A100")),
    ],
    ids=["one-is-hidden", "another-vendor", "another-card"],
)
def test_what_cannot_be_paired_stays_as_listed(cards: tuple[Card, ...], seen: GpuMemory) -> None:
    assert with_holders(cards, seen) == cards


def test_processes_of_another_namespace_are_not_named() -> None:
    (found,) = with_holders((listed("CUDA0", 140),), counted(100, complete=False))
    assert (found.free, found.holders) == (40 * GIB, ())


def test_a_number_that_means_unknown_is_no_holders_memory() -> None:
    device = {"name": "NVIDIA H200", "total": 9 * GIB, "used": GIB, "complete": True}
    device |= {"processes": {"77": (1 << 64) - 2}, "working": None, "idle": True}
    found = parse_memory(json.dumps({"driver": "580.159.04", "devices": [device]}))
    assert found
    assert found.devices[0].processes == {77: None}
