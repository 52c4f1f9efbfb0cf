"""Recordings: what they keep, what they leave out, and how they are refused."""

import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stub_drivers import LIBRARIES, StubDrivers

from tsuku_llm.ground.errors import SnapshotError
from tsuku_llm.machine.hardware import Api
from tsuku_llm.machine.host import Answers, ChildProgram, DriverAnswer, LocalHost
from tsuku_llm.machine.snapshot import (
    SIZE_LIMIT,
    RecordingHost,
    ReplayHost,
    Scrubber,
    parse_recording,
)
from tsuku_llm.probe import probe

PROGRAM = ChildProgram(Path("/nowhere"), "nothing", lambda environ, _scratch, _root: environ)


class Machine(LocalHost):
    """Answers that would identify a person or a machine."""

    def __init__(self, root: Path, answers: Mapping[str, DriverAnswer] | None = None) -> None:
        super().__init__(root, {"LD_LIBRARY_PATH": "/home/alice/cuda/lib64"})
        self.answers = answers or {}
        self.asked: list[str] = []

    def read_text(self, path: str) -> str | None:
        self.asked.append(path)
        return super().read_text(path)

    def ask(self, *_: object) -> Answers:
        return lambda: self.answers


def saved(host: RecordingHost, folder: Path) -> Any:
    host.save(folder / "machine.json")
    return json.loads((folder / "machine.json").read_text("utf-8"))


def test_a_recording_replays_to_the_same_hardware(tmp_path: Path) -> None:
    recorder = RecordingHost(LocalHost())
    before = probe(recorder)
    recorder.save(tmp_path / "machine.json")
    after = probe(ReplayHost.load(tmp_path / "machine.json"))
    assert after.simulated == "machine.json"
    assert [anonymous(api) for api in after.apis] == [anonymous(api) for api in before.apis]
    assert (after.libc, after.libstdcxx, after.cpu) == (before.libc, before.libstdcxx, before.cpu)


def test_drivers_are_replayed_from_a_recording(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stubs = StubDrivers(tmp_path_factory.mktemp("drivers"))
    host = stubs.host(*LIBRARIES, cuda_count=2, vulkan_count=2, zeInit=0x78000001)
    recorder = RecordingHost(host)
    before = probe(recorder)
    recorder.save(tmp_path / "machine.json")
    after = probe(ReplayHost.load(tmp_path / "machine.json"))
    assert [len(api.gpus) for api in after.apis] == [2, 1, 0, 2, 1, 0]
    assert [anonymous(api) for api in after.apis] == [anonymous(api) for api in before.apis]
    assert len({gpu.uuid for gpu in after.api("cuda").gpus}) == 2


def anonymous(api: Api) -> Api:
    return replace(api, gpus=tuple(replace(gpu, uuid=None) for gpu in api.gpus))


def test_an_answer_is_asked_for_once_and_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    machine = Machine(tmp_path)
    recorder = RecordingHost(machine)
    assert (recorder.read_text("/file"), recorder.read_text("/file")) == ("x", "x")
    assert machine.asked == ["/file"]
    assert saved(recorder, tmp_path)["files"] == {"/file": "x"}


def test_every_kind_of_answer_comes_back(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("ä")
    answers = {"q": DriverAnswer(({"call": "x", "code": 0},), "signal 11", "cuInit")}
    recorder = RecordingHost(Machine(tmp_path, answers))
    recorder.read_text("/folder/file")
    recorder.read_text("/missing")
    recorder.list_dir("/folder")
    recorder.access("/folder/file")
    recorder.environment("LD_LIBRARY_PATH")
    recorder.ask(PROGRAM, ["q"], 1.0)()
    recorder.save(tmp_path / "machine.json")
    replay = ReplayHost.load(tmp_path / "machine.json")
    assert replay.system() == recorder.system()
    assert replay.read_text("/folder/file") == "ä"
    assert replay.read_text("/missing") is None
    assert replay.list_dir("/folder") == ("file",)
    assert replay.access("/folder/file") == "rw"
    assert replay.environment("LD_LIBRARY_PATH") == "~/cuda/lib64"
    assert replay.ask(PROGRAM, ["q", "newer"], 1.0)() == {**answers, "newer": DriverAnswer()}


def test_a_question_newer_than_the_recording_is_answered_absent(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"format": 1, "system": {"os": "linux"}}')
    hardware = probe(ReplayHost.load(tmp_path / "old.json"))
    assert {api.state.value for api in hardware.apis} == {"absent"}
    assert (hardware.libstdcxx, hardware.memory) == (None, None)


def test_source_and_expect_are_kept(tmp_path: Path) -> None:
    content = {"format": 1, "system": {}, "source": "ollama#1", "expect": {"detected": ["cpu"]}}
    (tmp_path / "a.json").write_text(json.dumps(content))
    recording = ReplayHost.load(tmp_path / "a.json").recording
    assert (recording.source, recording.expect) == ("ollama#1", {"detected": ["cpu"]})


# --- names of persons and machines --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/alice/cuda/lib64:/usr/lib", "~/cuda/lib64:/usr/lib"),
        ("/Users/alice/x", "~/x"),
        (r"C:\Users\Alice Smith\x", r"~\x"),
        ("/home/alice", "~"),
        ("model\t: Pi\nSerial\t\t: 10000000abcdef01\n", "model\t: Pi\nSerial\t\t: removed\n"),
        ("on workstation-7 and WORKSTATION-7.lan", "on removed and removed.lan"),
        ("workstation-77", "workstation-77"),
        ("580.159.04", "580.159.04"),
        (
            "GPU-8b2cf3d7-1c2e-4b3a-9f10-0123456789ab, 8b2cf3d71c2e4b3a9f100123456789ab",
            "GPU-uuid-1, uuid-1",
        ),
    ],
)
def test_names_of_users_and_machines_are_removed(text: str, clean: str) -> None:
    assert Scrubber(["workstation-7", "vm", "root"]).clean(text) == clean


def test_keys_and_nested_answers_are_cleaned() -> None:
    raw = {"/home/bob/x": [{"path": "/home/bob/y", "count": 3, "none": None, "yes": True}]}
    assert Scrubber([]).clean(raw) == {
        "~/x": [{"path": "~/y", "count": 3, "none": None, "yes": True}]
    }


def test_different_cards_get_different_pseudonyms() -> None:
    first, second = "a0" * 16, "b0" * 16
    assert Scrubber([]).clean([first, second, first]) == ["uuid-1", "uuid-2", "uuid-1"]


def test_a_real_recording_names_neither_this_machine_nor_its_user(tmp_path: Path) -> None:
    recorder = RecordingHost(LocalHost())
    probe(recorder)
    recorder.save(tmp_path / "machine.json")
    text = (tmp_path / "machine.json").read_text("utf-8")
    for name in (socket.gethostname(), getpass.getuser()):
        assert len(name) < 4 or name == "root" or name not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/root"


# --- bad files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"format": 2, "system": {}}',
        b'{"format": 1, "system": []}',
        b'{"format": 1, "system": {"os": []}}',
        b'{"format": 1, "files": {"/x": 7}}',
        b'{"format": 1, "folders": {"/x": "y"}}',
        b'{"format": 1, "folders": {"/x": [7]}}',
        b'{"format": 1, "answers": {"cuda": []}}',
        b'{"format": 1, "answers": {"cuda": {"lines": [7]}}}',
        b'{"format": 1, "answers": {"cuda": {"end": 7}}}',
        b'{"format": 1, "expect": []}',
        b'{"format": 1, "source": []}',
        b"[" * 100_000,
        b" " * (SIZE_LIMIT + 1),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=r"bad\.json is not a recorded machine") as caught:
        ReplayHost.load(path)
    assert caught.value.facts
    assert "probe --record" in caught.value.hint


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as caught:
        ReplayHost.load(tmp_path / "missing.json")
    assert caught.value.exit_code == 2


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be written"):
        RecordingHost(LocalHost()).save(tmp_path / "missing" / "x.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["format", "system", "files", "answers", "lines", "end", "call", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_file_is_read_or_refused(content: Any) -> None:
    data = json.dumps({"format": 1, **content} if isinstance(content, dict) else content)
    try:
        recording = parse_recording(data.encode())
    except ValueError:
        return
    probe(ReplayHost(recording, "x"))
