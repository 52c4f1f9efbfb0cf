from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.stored import install, snapshot

from tsuku_llm.ground.errors import CorruptStore, LockTimeout, UnsafeLocation
from tsuku_llm.store.locks import Holder
from tsuku_llm.store.store import Store

DRIVER = Path(__file__).parents[1] / "support" / "store_process.py"
ID = "b100-cpu-0123456789ab"
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and modes of POSIX")

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(store: Store) -> Iterator[Start]:
    """Start another process at the store; it has said its first line when this returns."""
    with ExitStack() as stack:

        def started(*arguments: str) -> Process:
            action, argument, *rest = arguments
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, DRIVER, action, store.data, argument, *rest],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.said = process.stdout.readline().strip()  # type: ignore[attr-defined]
            return process

        yield started


def go(*processes: Process) -> list[tuple[int, str]]:
    """Let them work, all at once; their exit codes and what they said."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    said = [process.communicate(timeout=600)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def finish(*processes: Process) -> list[int]:
    outputs = go(*processes)
    assert all(not text for _, text in outputs), outputs
    return [process.returncode for process in processes]


def test_L01_many_processes_install_the_same_version(store: Store, start: Start) -> None:
    processes = [start("install", "b100") for _ in range(12)]
    assert finish(*processes) == [0] * 12
    assert (store.data.parent / "fetched").read_text() == "b100\n"
    active = store.active()
    assert active is not None
    store.check(active, full=True)
    assert snapshot(store.data / "staging") == {}


def test_L02_different_versions_are_installed_at_once(store: Store, start: Start) -> None:
    processes = [start("install", f"b{number}") for number in (100, 200, 300, 100, 200, 300)]
    assert finish(*processes) == [0] * 6
    assert len(store.installed()) == 3
    for version in store.installed():
        store.check(version, full=True)
    assert store.active() in store.installed()
    assert snapshot(store.data / "staging") == {}


@POSIX
def test_L03_the_lock_of_a_killed_holder_is_free(store: Store, start: Start) -> None:
    holder = start("hold", ID)
    told: list[str] = []

    def kill(waited_for: Holder | None) -> None:
        told.append(str(waited_for))
        holder.kill()

    with Store(store.data, lock_timeout=60, on_wait=kill).lock(ID) as locked:
        assert locked
    assert told == [f"process {holder.pid}"]


@POSIX
def test_L04_a_stopped_holder_is_named(store: Store, start: Start) -> None:
    holder = start("hold", ID)
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(LockTimeout) as caught, store.lock(ID, timeout=0.2):
        pass
    text = " ".join((caught.value.message, *caught.value.facts, caught.value.hint))
    assert f"process {holder.pid}" in text
    assert str(store.data / "locks" / f"{ID}.lock") in text
    assert f"kill -CONT {holder.pid}" in text or sys.platform != "linux"
    holder.send_signal(signal.SIGCONT)
    finish(holder)
    with store.lock(ID, timeout=0):
        pass


def test_taking_a_free_lock_does_not_wait(store: Store) -> None:
    told: list[Holder | None] = []
    with Store(store.data, on_wait=told.append).lock(ID, timeout=0):
        pass
    assert told == []
    assert [path.name for path in (store.data / "locks").iterdir()] == [f"{ID}.lock"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.symlink_to(path.with_name("elsewhere")),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
    ids=["L05-lock-is-a-link", "L05-lock-is-a-folder", "L05-lock-is-a-fifo"],
)
def test_a_lock_that_is_not_a_regular_file_is_refused(
    store: Store, spoil: Callable[[Path], object]
) -> None:
    store.adopt()
    (store.data / "locks").mkdir()
    spoil(store.data / "locks" / f"{ID}.lock")
    with pytest.raises(CorruptStore, match="not a file"), store.lock(ID):
        pass
    assert not (store.data / "locks" / "elsewhere").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_L05_a_lock_of_another_user_is_refused(store: Store) -> None:
    with store.lock(ID):
        pass
    os.chown(store.data / "locks" / f"{ID}.lock", 12345, 12345)
    with pytest.raises(UnsafeLocation, match="another user"), store.lock(ID):
        pass


NO_FLOCK = pytest.mark.parametrize("flock", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", "useless"])


@NO_FLOCK
def test_L06_without_flock_writers_leave_a_valid_state(
    store: Store, start: Start, flock: str
) -> None:
    install(store, "b050")
    processes = [start("install", release, flock) for release in ("b100", "b200") * 2]
    outputs = go(*processes)
    assert [returncode for returncode, _ in outputs] == [0] * 4, outputs
    fetched = (store.data.parent / "fetched").read_text().split()
    assert sorted(fetched) == ["b100", "b200"], "the notes of who holds a lock exclude as well"
    active = store.active()
    assert active is not None
    for version in store.installed():
        store.check(version, full=True)
    store.sweep()
    assert active.receipt.release in {"b100", "b200"}


@NO_FLOCK
def test_L06_without_flock_a_holder_is_waited_for_and_named(
    store: Store, start: Start, flock: str
) -> None:
    holder = start("hold", ID, flock)
    told: list[str] = []
    patient = Store(store.data, on_wait=lambda waited_for: told.append(str(waited_for)))
    with pytest.raises(LockTimeout, match=f"process {holder.pid}"):
        patient.lock(ID, timeout=0.1).__enter__()
    assert told == [f"process {holder.pid}"]
    with pytest.raises(LockTimeout), patient.lock(ID, timeout=0):
        pass
    assert finish(holder) == [0]
    with store.lock(ID, timeout=0):
        pass


@POSIX
def test_a_note_that_this_process_could_not_remove_does_not_block_it(store: Store) -> None:
    with store.lock(ID, timeout=0):
        (note,) = (store.data / "locks").glob("*.pid")
        text = note.read_text("utf-8")
    note.write_text(text, "utf-8")
    with store.lock(ID, timeout=0):
        assert note.read_text("utf-8") == text
    assert not note.exists()


@NO_FLOCK
def test_L06_without_flock_only_staging_of_dead_processes_is_swept(
    store: Store, start: Start, flock: str
) -> None:
    holder = start("stage", "", flock)
    before = snapshot(Path(holder.said))  # type: ignore[attr-defined]
    assert finish(start("sweep", "", flock)) == [0]
    assert snapshot(Path(holder.said)) == before != {}  # type: ignore[attr-defined]
    holder.kill()
    holder.wait()
    with store.lock(ID, timeout=0):  # the note of a dead process does not block
        pass
    store.sweep()
    assert snapshot(store.data / "staging") == {}


def test_L06_without_flock_nothing_fresh_is_swept(store: Store, start: Start) -> None:
    installed = install(store)
    fresh = [
        store.data / f".active.json.{'01' * 8}.tmp",
        installed.path / f".fingerprint.json.{'01' * 8}.tmp",
        store.data / "staging" / ("45" * 8) / "receipt.json",
        store.data / "staging" / f"{'45' * 8}.lock",
    ]
    for path in fresh:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert finish(start("sweep", "", "ENOLCK")) == [0]
    assert all(path.exists() for path in fresh)
    assert finish(start("sweep", "")) == [0]
    assert not any(path.exists() for path in fresh)


def test_L06_without_flock_a_lock_file_alone_is_swept(store: Store, start: Start) -> None:
    """A sweep that comes late makes the file again that an install has just removed."""
    install(store)
    alone = store.data / "staging" / f"{'45' * 8}.lock"
    alone.write_bytes(b"")
    assert finish(start("sweep", "", "ENOLCK")) == [0]
    assert not alone.exists()


def test_L06_without_flock_the_age_of_a_folder_counts_when_its_lock_file_is_gone(
    store: Store, start: Start
) -> None:
    install(store)
    fresh = store.data / "staging" / ("45" * 8) / "receipt.json"
    fresh.parent.mkdir()
    fresh.write_bytes(b"")
    assert finish(start("sweep", "", "ENOLCK")) == [0]
    assert fresh.exists()


@POSIX
def test_L08_children_inherit_no_lock(store: Store) -> None:
    with store.lock(ID), store.staging():
        listing = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], check=False, capture_output=True, text=True
        )
    if listing.returncode:
        pytest.skip("no /proc here")
    assert str(store.data) not in listing.stdout


def test_staging_of_a_live_process_is_not_swept(store: Store, start: Start) -> None:
    holder = start("stage", "")
    staging = Path(holder.said)  # type: ignore[attr-defined]
    before = snapshot(staging)
    store.sweep()
    assert snapshot(staging) == before != {}
    finish(holder)
    assert snapshot(store.data / "staging") == {}


@POSIX
def test_staging_of_a_killed_process_is_swept(store: Store, start: Start) -> None:
    holder = start("stage", "")
    holder.kill()
    holder.wait()
    assert snapshot(store.data / "staging") != {}
    store.sweep()
    assert snapshot(store.data / "staging") == {}


def made_before(store: Store, seconds: float) -> None:
    for path in (store.data / "staging").iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


@POSIX
def test_staging_of_another_machine_is_swept_when_it_is_old(store: Store, start: Start) -> None:
    holder = start("stage", "")
    holder.kill()
    holder.wait()
    (name,) = (store.data / "staging").glob("*.pid")
    name.write_text("17 another-boot:1 another-machine\n")
    made_before(store, 3600)
    store.sweep()
    assert snapshot(store.data / "staging") != {}
    made_before(store, 25 * 3600)
    store.sweep()
    assert list((store.data / "staging").iterdir()) == []


@POSIX
def test_L07_a_child_with_the_descriptor_holds_the_version(store: Store) -> None:
    old = install(store, "b100")
    install(store, "b200")
    install(store, "b300")
    with store.hold(old) as descriptor:
        assert descriptor is not None
        server = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    with server:
        assert store.prune().in_use == (old.id,)
        store.check(old, full=True)
    assert store.prune().removed == (old.id,)
