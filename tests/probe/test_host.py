"""The door to the machine, and the children behind it."""

from __future__ import annotations

import errno
import functools
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.tools import require_tool

from tsuku_llm import probe
from tsuku_llm.ground.processes.driver_child import Asking, Child, StartProcess
from tsuku_llm.machine import local_host
from tsuku_llm.machine.host import ChildProgram, DriverAnswer, LocalHost
from tsuku_llm.machine.local_host import READ_LIMIT
from tsuku_llm.probe.facts.environment import child_environment

CHILD = """
import json, os, sys, time

def say(**message):
    os.write(1, json.dumps(message).encode() + b"\\n")

def main(root, limit, questions):
    say(ask=None)
    for question in questions:
        say(ask=question, before="call " + question)
        globals()[question.split("-")[0]](question)
        say(ask=question, end="done")

def root(question):
    say(ask=question, call="root", value=sys.argv[3])
def good(question):
    say(ask=question, call="x", code=0)
def environ(question):
    say(ask=question, call="environ", value=dict(os.environ))
def path(question):
    say(ask=question, call="path", value=sys.path, cwd=os.getcwd(), mode=os.stat(".").st_mode)
def die(question):
    say(ask=question, call="last words")
    os.kill(os.getpid(), 9)
def leave(question):
    os._exit(3)
def hang(question):
    say(ask=question, call="last words")
    time.sleep(3600)
def until(question):
    while not os.path.exists(sys.argv[3] + "/go"):
        time.sleep(0.01)
def make(question):
    open(sys.argv[3] + "/go", "w").close()
def chatter(question):
    while True:
        say(ask=question, call="x")
        time.sleep(0.05)
def flood(question):
    while True:
        os.write(1, b"x" * 65536)
def junk(question):
    for line in (b"\\xff", b"[]", b"{}", b'{"ask": 7}', b'{"ask": []}', b"[" * 9999):
        os.write(1, line + b"\\n")
def crashes(question):
    until(question)
    if question != sys.argv[5]:
        os.abort()
def second(question):
    if question != sys.argv[5]:
        os.abort()
def grandchild(question):
    if os.fork() == 0:
        time.sleep(3600)
    time.sleep(3600)
"""


@pytest.fixture
def program(tmp_path: Path) -> ChildProgram:
    (tmp_path / "answering.py").write_text(CHILD)
    return ChildProgram(tmp_path, "answering", lambda environ, _scratch, _root: environ)


def ask(program: ChildProgram, *questions: str, limit: float = 30.0) -> Mapping[str, DriverAnswer]:
    return LocalHost().ask(program, questions, limit)()


GOOD = DriverAnswer(({"call": "x", "code": 0},), "done")


def test_every_question_is_answered_in_its_own_lines(program: ChildProgram) -> None:
    assert ask(program, "good-1", "good-2") == {"good-1": GOOD, "good-2": GOOD}


def test_no_question_starts_no_child(program: ChildProgram) -> None:
    assert ask(program) == {}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("die", DriverAnswer(({"call": "last words"},), "signal 9")),
        ("leave", DriverAnswer((), "exit 3", "call leave")),
    ],
)
def test_a_question_that_kills_the_child_is_blamed_alone(
    program: ChildProgram, question: str, answer: DriverAnswer
) -> None:
    assert ask(program, question, "good") == {question: answer, "good": GOOD}


def test_a_hang_costs_the_limit_and_is_named(program: ChildProgram) -> None:
    answers = ask(program, "good-1", "hang", "good-2", limit=3.0)
    assert answers["hang"] == DriverAnswer(({"call": "last words"},), "timed-out", None, 3.0)
    assert answers["good-1"] == answers["good-2"] == GOOD


def test_output_does_not_extend_the_limit(program: ChildProgram) -> None:
    assert ask(program, "chatter", limit=0.5)["chatter"].end == "timed-out"


def test_a_driver_that_floods_the_pipe_is_stopped(program: ChildProgram) -> None:
    answers = ask(program, "flood", "good")
    assert answers["flood"].end.startswith(("signal", "exit"))
    assert answers["good"] == GOOD


def test_lines_that_are_not_answers_are_ignored(program: ChildProgram) -> None:
    assert ask(program, "junk", "good") == {"junk": DriverAnswer((), "done"), "good": GOOD}


def test_a_question_that_crashes_after_others_is_asked_again_alone(program: ChildProgram) -> None:
    answers = ask(program, "good", "second")
    assert answers == {"good": GOOD, "second": DriverAnswer((), "done")}


def test_two_fatal_questions_cost_two_children(program: ChildProgram) -> None:
    answers = ask(program, "die-1", "die-2", "good", "leave")
    ends = [answer.end for answer in answers.values()]
    assert ends == ["signal 9", "signal 9", "done", "exit 3"]


def test_the_childs_own_children_end_with_it(program: ChildProgram) -> None:
    assert ask(program, "grandchild", limit=0.5)["grandchild"].end == "timed-out"


def test_an_interrupted_caller_leaves_no_child(program: ChildProgram) -> None:
    asking = LocalHost().ask(program, ["hang"], 60.0)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asking()
    timer.join()
    assert [child.wait(30) for child in asking._child._processes] == [-signal.SIGKILL]


def test_ending_the_questions_ends_the_child(program: ChildProgram) -> None:
    asking = LocalHost().ask(program, ["hang", "good"], 60.0)
    asking.end()
    assert [child.returncode for child in asking._child._processes] == [-signal.SIGKILL]


def starter(program: ChildProgram, root: Path | None = None) -> StartProcess:
    """Return the function that starts a child of this program, without a folder of its own."""
    command = [sys.executable, "-I", "-S", "-E", "-c", local_host._START, str(program.folder)]
    command += [program.module, str(root or ""), "60"]
    return functools.partial(local_host._start, command, dict(os.environ), None)


def test_a_child_that_starts_too_late_is_ended(program: ChildProgram) -> None:
    start = starter(program)

    def started_while_cancelled(questions: Sequence[str]) -> subprocess.Popen[bytes]:
        process = start(questions)
        child.cancel()
        return process

    child = Child(started_while_cancelled, 60.0)
    child.ask_all(["hang"])
    assert [each.returncode for each in child._processes] == [-signal.SIGKILL]


# --- slow drivers ------------------------------------------------------------------------


def test_a_slow_question_does_not_hold_up_the_others(program: ChildProgram, tmp_path: Path) -> None:
    """The first one ends only after the second, so both must be in progress at once."""
    child = Child(starter(program, tmp_path), 60.0, patience=0.1)
    answers = child.ask_all(["until", "make", "good"])
    assert [answer.end for answer in answers.values()] == ["done"] * 3
    assert answers["good"] == GOOD
    assert child.slow[0] == "until"


def test_the_user_is_told_of_a_slow_question_while_it_is_waited_for(
    program: ChildProgram, tmp_path: Path
) -> None:
    told = []

    def tell(question: str, limit: float) -> None:
        told.append((question, limit))
        (tmp_path / "go").touch()  # without this the question never ends

    child = Child(starter(program, tmp_path), 60.0, patience=0.1)
    answers = Asking(child, lambda: child.ask_all(["good", "until"]), tell)()
    assert answers["until"].end == "done"
    assert told == [("until", 60.0)]


def test_slow_questions_lose_only_their_own_answers(program: ChildProgram) -> None:
    child = Child(starter(program), 1.0, patience=0.1)
    answers = child.ask_all(["hang-1", "die", "hang-2", "good"])
    ends = [answer.end for answer in answers.values()]
    assert ends == ["timed-out", "signal 9", "timed-out", "done"]


def test_ending_the_questions_ends_every_child(program: ChildProgram) -> None:
    start, third = starter(program), threading.Event()

    def noted(questions: Sequence[str]) -> subprocess.Popen[bytes]:
        if questions[0] == "hang-3":
            third.set()
        return start(questions)

    child = Child(noted, 60.0, patience=0.1)
    asking = Asking(child, lambda: child.ask_all(["hang-1", "hang-2", "hang-3"]))
    assert third.wait(60)
    asking.end()
    assert [each.returncode for each in child._processes] == [-signal.SIGKILL] * 3


def test_a_slow_question_that_crashes_is_asked_again_alone(
    program: ChildProgram, tmp_path: Path
) -> None:
    answers = Child(starter(program, tmp_path), 60.0, patience=0.1).ask_all(
        ["good", "crashes", "make"]
    )
    assert [answer.end for answer in answers.values()] == ["done"] * 3


def test_an_error_of_our_code_is_not_lost() -> None:
    def fail() -> dict[str, DriverAnswer]:
        raise MemoryError

    child = Child(lambda _: pytest.fail("started"), 1.0)
    with pytest.raises(MemoryError):
        Asking(child, fail)()


# --- a child that does not start ---------------------------------------------------------


def test_a_child_that_cannot_start_is_reported(program: ChildProgram, tmp_path: Path) -> None:
    gone = ChildProgram(tmp_path, "no_such_module", program.environment)
    reason = "the child process ended before it could ask (exit 1)"
    assert ask(gone, "good")["good"] == DriverAnswer((), "not-started", reason)


def test_without_an_interpreter_nothing_is_asked(
    program: ChildProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    answer = ask(program, "good")["good"]
    assert answer.end == "not-started"
    assert "/nowhere/python" in (answer.during or "")


@pytest.mark.parametrize("place", ["missing", "a file", "relative", ""])
def test_a_folder_for_temporary_files_that_is_not_one_is_passed_over(
    program: ChildProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    told = {"missing": "/nowhere", "a file": str(file), "relative": "here", "": ""}[place]
    monkeypatch.setenv("TMPDIR", told)
    monkeypatch.setenv("TEMP", str(tmp_path))
    (line,) = ask(program, "path")["path"].lines
    assert Path(line["cwd"]).parent == tmp_path
    assert stat.S_IMODE(line["mode"]) == 0o700


def test_without_any_folder_for_temporary_files_the_drivers_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a read-only root."""

    def refuse(path: object, _mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    (tmp_path / "answering.py").write_text(CHILD)
    program = ChildProgram(tmp_path, "answering", child_environment)
    monkeypatch.setattr(os, "mkdir", refuse)
    host = LocalHost(None, {"POCL_CACHE_DIR": "/own"})
    answers = host.ask(program, ["path", "environ", "good"], 30.0)()
    assert answers["good"] == GOOD
    assert answers["path"].lines[0]["cwd"] == "/"
    assert answers["environ"].lines[0]["value"]["POCL_CACHE_DIR"] == "/own"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, "no more processes or threads are allowed"),
        (errno.EMFILE, "this process has too many open files (ulimit -n: "),
        (errno.ENFILE, "the whole system has too many open files"),
        (errno.ENOMEM, "there is not enough memory"),
    ],
)
def test_a_limit_of_the_system_is_the_reason(number: int, words: str) -> None:
    def refuse(_questions: Sequence[str]) -> subprocess.Popen[bytes]:
        raise OSError(number, os.strerror(number))

    answers = Child(refuse, 1.0).ask_all(["a", "b"])
    assert {answer.end for answer in answers.values()} == {"not-started"}
    assert (answers["a"].during or "").startswith(words)


@pytest.mark.parametrize("name", ["faulthandler.dump_traceback_later", "_thread.start_new_thread"])
def test_a_child_without_threads_blames_no_driver(tmp_path: Path, name: str) -> None:
    """The limit may leave room for the child, and none for its watchdog or a driver's threads."""
    (tmp_path / "answering.py").write_text(
        "import faulthandler, sys, _thread\n"
        f"sys.path.append({str(Path(probe.__file__).parent)!r})\n"
        "from worker.main import main\n"
        "def refuse(*_, **__): raise RuntimeError('no thread')\n"
        f"{name} = refuse\n"
    )
    answers = ask(ChildProgram(tmp_path, "answering", child_environment), "cuda", "vulkan")
    assert {answer.end for answer in answers.values()} == {"not-started"}
    assert (answers["cuda"].during or "").startswith("no more processes or threads are allowed")


@pytest.mark.parametrize("allowed", [0, 1])
def test_without_threads_nothing_is_asked_and_nothing_is_left(
    program: ChildProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """With the limit of processes used up: at once, or after the first thread."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    start, left = threading.Thread.start, [None] * allowed

    def refuse(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    asking = LocalHost().ask(program, ["good", "hang"], 60.0)
    answers = asking()
    assert {answer.end for answer in answers.values()} == {"not-started"}
    assert (answers["good"].during or "").startswith("no more processes or threads are allowed")
    assert not [*scratch.iterdir()]
    assert all(child.returncode is not None for child in asking._child._processes)


def test_the_child_sees_no_site_packages_and_works_in_a_private_folder(
    program: ChildProgram,
) -> None:
    (line,) = ask(program, "path")["path"].lines
    assert not any("site-packages" in entry for entry in line["value"])
    assert line["value"][-1] == str(program.folder)
    assert stat.S_IMODE(line["mode"]) == 0o700
    assert not Path(line["cwd"]).exists()


def test_the_child_gets_the_environment_that_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "answering.py").write_text(CHILD)
    program = ChildProgram(tmp_path, "answering", child_environment)
    environ = {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
        "CUDA_VISIBLE_DEVICES": "",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/evil",
        "VK_INSTANCE_LAYERS": "VK_LAYER_evil",
    }
    (line,) = LocalHost(None, environ).ask(program, ["environ"], 30.0)()["environ"].lines
    seen = line["value"]
    assert seen["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["VK_LOADER_LAYERS_DISABLE"] == "~implicit~"
    assert not Path(seen["POCL_CACHE_DIR"]).exists()
    assert not {"LD_PRELOAD", "PYTHONPATH", "VK_INSTANCE_LAYERS"} & seen.keys()


def test_the_childs_library_path_may_begin_with_a_folder_of_ours() -> None:
    made = child_environment({"LD_LIBRARY_PATH": "/a"}, "/s", "/root", first_library_folder="/w")
    assert made["LD_LIBRARY_PATH"] == "/root/w:/a"
    assert child_environment({}, "/s", "", first_library_folder="/w")["LD_LIBRARY_PATH"] == "/w"
    assert "LD_LIBRARY_PATH" not in child_environment({}, "/s", "")


# --- files -------------------------------------------------------------------------------


def test_files_are_read_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "b").write_bytes(b"x\xff")
    (tmp_path / "etc" / "a").write_bytes(b"y" * (READ_LIMIT + 1))
    host = LocalHost(tmp_path)
    assert host.read_text("/etc/b") == "x\ufffd"
    assert len(host.read_text("/etc/a") or "") == READ_LIMIT
    assert host.list_dir("/etc") == ("a", "b")
    assert host.access("/etc/a") == "rw"


@pytest.mark.skipif(sys.platform != "linux", reason="device nodes of Linux")
def test_a_device_node_is_opened(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    assert LocalHost(tmp_path).access("/null") == "rw"


@pytest.mark.skipif(sys.platform != "linux", reason="device nodes of Linux")
def test_a_node_that_is_passed_as_a_file_does_not_open() -> None:
    """Bubblewrap's --bind mounts with nodev: access(2) allows what the open refuses."""
    code = (
        "import os; from tsuku_llm.machine.host import LocalHost as Host;"
        "print(os.access('/dev/x', os.R_OK | os.W_OK), Host().access('/dev/x'))"
    )
    passed = ["--dev-bind", "/", "/", "--tmpfs", "/dev", "--bind", "/dev/zero", "/dev/x"]
    command = [require_tool("bwrap"), *passed, sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if "bwrap:" in told.stderr:
        pytest.skip(f"bubblewrap does not run here: {told.stderr[:200]}")
    assert told.stdout == "True rw nodev\n", told.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="device nodes of Linux")
@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.EPERM, "rw EPERM"), (errno.EACCES, "rw EACCES"), (errno.ENXIO, "rw ENXIO")],
)
def test_what_the_open_of_a_node_answers_is_told(
    monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    """Device rules, AppArmor, and a number that no driver has; root may change none of them."""

    def refuse(*_: object) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "open", refuse)
    assert LocalHost().access("/dev/null") == told


def test_a_file_whose_status_is_refused_exists_if_its_folder_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SELinux denies a container the getattr of a device that it was given (podman#15930)."""
    (tmp_path / "kfd").touch()

    def refuse(*_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "refused")

    monkeypatch.setattr(os, "lstat", refuse)
    host = LocalHost(tmp_path)
    assert (host.access("/kfd"), host.access("/nvidiactl")) == ("rw EACCES", None)
    assert host.access("/none/kfd") is None


@pytest.mark.parametrize("path", ["/missing", "/file/below", "/nul\0", "/folder"])
def test_unreadable_files_are_absent(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    host = LocalHost(tmp_path)
    assert host.read_text(path) is None
    assert host.list_dir(path) in (None, ())


def test_a_missing_file_has_no_access_and_a_dangling_link_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    host = LocalHost(tmp_path)
    assert (host.access("/missing"), host.access("/link")) == (None, "")


def test_variables_come_from_this_process_or_the_given_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert LocalHost().environment("SOME_VARIABLE") == "1"
    assert LocalHost(None, {}).environment("SOME_VARIABLE") is None


def test_the_system_is_described_without_the_machines_name() -> None:
    facts = LocalHost().system()
    assert facts["os"] == sys.platform
    assert facts["bits"] in (32, 64)
    assert os.uname().nodename not in facts.values() or os.uname().nodename == ""
