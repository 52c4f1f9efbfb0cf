import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.ground.errors import AlreadyRunning, CorruptStore, UsageError
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record, ServerState, checked_name
from tsuku_llm.launch.plan.report import StartReport

US = Process.of(os.getpid())
assert US
DEAD = Process(US.pid, "another-boot:1")
REPORT = StartReport(
    name="default",
    release="b1",
    id="b1-cpu-0123456789ab",
    requested="auto",
    detected=("cpu",),
    selected="cpu",
    supervisor=1,
    pid=2,
    host="127.0.0.1",
    port=8080,
    started_at="2026-11-21T12:00:00Z",
)
RECORD = Record(name="default", supervisor=US, host="127.0.0.1", port=8080)


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    full = replace(
        RECORD, idle_timeout=300, server=DEAD, report=REPORT, exit_code=137, reason="killed"
    )
    instances = Instances(tmp_path)
    instances.claim(RECORD)
    assert instances.find("default") == RECORD
    instances.write(full)
    assert instances.find("default") == full


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, ServerState.STARTING),
        ({"report": REPORT}, ServerState.STARTING),
        ({"report": REPORT._replace(ready=True), "server": US}, ServerState.RUNNING),
        ({"supervisor": DEAD, "server": US}, ServerState.UNWATCHED),
        ({"supervisor": DEAD}, ServerState.LOST),
        ({"supervisor": DEAD, "server": DEAD}, ServerState.LOST),
        ({"supervisor": DEAD, "server": DEAD, "exit_code": 0}, ServerState.ENDED),
    ],
)
def test_the_state_comes_from_the_system(changes: dict[str, object], state: ServerState) -> None:
    assert replace(RECORD, **changes).state is state


@pytest.mark.parametrize(
    ("host", "port", "apart"),
    [
        ("127.0.0.1", 8080, False),
        ("127.0.0.1", 8081, True),
        ("10.0.0.1", 8080, True),
        ("0.0.0.0", 8080, False),  # noqa: S104 - compared
        ("::", 8080, False),
    ],
)
def test_two_servers_do_not_listen_at_the_same_place(
    host: str, port: int, apart: bool, tmp_path: Path
) -> None:
    instances = Instances(tmp_path)
    instances.claim(RECORD)
    second = replace(RECORD, name="second", host=host, port=port)
    if apart:
        instances.claim(second)
        return
    with pytest.raises(AlreadyRunning, match=rf"default \(process {RECORD.supervisor.pid}\)"):
        instances.claim(second)
    assert instances.find("second") is None


def test_automatic_ports_and_different_sockets_do_not_collide(tmp_path: Path) -> None:
    instances = Instances(tmp_path)
    instances.claim(replace(RECORD, port=0))
    instances.claim(replace(RECORD, name="second", port=0))
    instances.claim(replace(RECORD, name="third", host="/run/a.sock", port=None))
    instances.claim(replace(RECORD, name="fourth", host="/run/b.sock", port=None))
    with pytest.raises(AlreadyRunning, match=r"listens at /run/a\.sock"):
        instances.claim(replace(RECORD, name="fifth", host="/run/a.sock", port=None))


def test_a_name_is_free_after_its_server_ended(tmp_path: Path) -> None:
    instances = Instances(tmp_path)
    instances.claim(RECORD)
    with pytest.raises(AlreadyRunning, match="is running already"):
        instances.claim(replace(RECORD, port=1))
    instances.write(replace(RECORD, supervisor=DEAD))
    instances.claim(RECORD)
    instances.forget("default")
    assert instances.all() == ()


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_only_the_user_can_read_the_folder(tmp_path: Path) -> None:
    Instances(tmp_path).claim(RECORD)
    assert (tmp_path / "servers").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a/b", "a" * 65, "-a", ".a", "a\n"])
def test_a_name_that_cannot_be_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(field=st.sampled_from(sorted(json.loads(RECORD.to_json()))), junk=JUNK)
def test_C10_a_record_of_junk_is_one_error_or_a_record(field: str, junk: object) -> None:
    document = json.loads(replace(RECORD, report=REPORT, server=DEAD).to_json()) | {field: junk}
    with suppress(CorruptStore):
        assert Record.from_json(json.dumps(document).encode()).state in ServerState


@pytest.mark.parametrize("data", [b"", b"\x00" * 99, b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_C10_a_damaged_record_is_named_and_hides_no_other(data: bytes, tmp_path: Path) -> None:
    instances = Instances(tmp_path)
    instances.claim(RECORD)
    (tmp_path / "servers" / "broken.json").write_bytes(data)
    assert instances.all() == (RECORD,)
    assert list(instances.damaged()) == ["broken"]
    with pytest.raises(CorruptStore):
        instances.find("broken")
    instances.claim(replace(RECORD, name="broken", port=1))
    assert [record.name for record in instances.all()] == ["broken", "default"]
