"""Unattended updates with real servers, which are stand-ins: what stays, and what goes back."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.convergence import FAST, ON_CPU, ON_GPU, SelfUpdating, self_updating
from support.sweeps import stride
from support.waiting import PROMPTLY

from tsuku_llm.cli.render.services import unattended as render
from tsuku_llm.instances.record import Record
from tsuku_llm.steps.drivers.speed_notes import keep_speeds
from tsuku_llm.steps.servers.unattended import UnattendedReport
from tsuku_llm.store.records.updates import read_journal, read_marks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SelfUpdating]:
    with self_updating(tmp_path) as machine:
        machine.publish("b1")
        machine.run("install")
        yield machine


def test_a_good_release_is_installed_and_every_server_runs_it(machine: SelfUpdating) -> None:
    before = machine.serve()
    machine.publish("b2")
    report, _ = machine.update()
    assert (report.outcome, report.checked, report.failure) == ("updated", "servers", None)
    assert [(each.name, each.outcome) for each in report.servers] == [("default", "updated")]
    assert (machine.active(), machine.runs()) == ("b2", "b2")
    after = machine.servers()["default"]
    assert after["supervisor"] == before["supervisor"]
    assert after["pid"] != before["pid"]
    assert read_journal(machine.home / "llm") is None
    # Nothing newer: nothing is restarted.
    report, _ = machine.update()
    assert (report.outcome, report.servers) == ("unchanged", ())
    assert machine.servers()["default"]["pid"] == after["pid"]


BAD = {
    "does-not-start": ("err the flux is open", "exit 42"),
    "dies-at-the-first-request": ("die the flux is open", "listen"),
    "refuses-every-request": ("refuse 500 500", "listen"),
}


@pytest.mark.parametrize("serve", BAD.values(), ids=BAD)
def test_a_release_whose_server_is_dead_goes_back_and_is_not_tried_again(
    serve: Sequence[str], machine: SelfUpdating
) -> None:
    supervisor = machine.serve()["supervisor"]
    machine.publish("b2", serve)
    report, _ = machine.update()
    assert report.failure
    assert (report.outcome, report.failure.kind, report.tried) == ("rolled-back", "failed", "b2")
    assert [(each.name, each.outcome) for each in report.servers] == [("default", "back")]
    assert (machine.active(), machine.runs()) == ("b1", "b1")
    assert machine.servers()["default"]["supervisor"] == supervisor
    (marked,) = read_marks(machine.home / "llm")
    assert (marked.release, marked.reason) == ("b2", report.failure.reason)
    again, notes = machine.update()
    assert (again.outcome, again.servers) == ("unchanged", ())
    assert any("b2 was rolled back here" in note and "--retry" in note for note in notes)
    # A release after it is taken.
    machine.publish("b3")
    assert machine.update()[0].outcome == "updated"
    assert machine.runs() == "b3"


def test_a_release_that_is_slower_than_the_last_benchmark_goes_back(machine: SelfUpdating) -> None:
    machine.serve()
    keep_speeds(machine.home / "llm" / "state", machine.model, {"cpu": 100.0})
    machine.publish("b2", ("speed 1000 81", "listen"))
    assert machine.update()[0].outcome == "updated"
    machine.publish("b3", ("speed 1000 63", "listen"))
    report, _ = machine.update()
    assert report.failure
    assert report.failure == (
        "slow",
        "default: it generates 63.0 tokens per second, 64.8 were expected",
    )
    assert (machine.active(), machine.runs()) == ("b2", "b2")
    assert [each.release for each in read_marks(machine.home / "llm")] == ["b3"]


def test_a_server_that_wants_a_key_is_measured_with_it(tmp_path: Path) -> None:
    with self_updating(tmp_path) as machine:
        machine.publish("b1", ("key", *FAST))
        machine.run("install")
        machine.serve("default", "--api-key", "s3cret-of-the-user")
        keep_speeds(machine.home / "llm" / "state", machine.model, {"cpu": 100.0})
        machine.publish("b2", ("key", "speed 1000 60", "listen"))
        report, notes = machine.update()
        assert report.failure
        assert (report.outcome, report.failure.kind) == ("rolled-back", "slow")
        assert (machine.active(), machine.runs()) == ("b1", "b1")
        assert "s3cret" not in f"{report} {notes}"


def test_without_a_benchmark_no_speed_is_demanded(machine: SelfUpdating) -> None:
    machine.serve()
    machine.publish("b2", ("speed 1000 1", "listen"))
    assert machine.update()[0].outcome == "updated"


def test_a_release_that_leaves_the_gpu_goes_back(tmp_path: Path) -> None:
    with self_updating(tmp_path) as machine:
        machine.publish("b1", ON_GPU, backend="vulkan")
        machine.run("install")
        assert machine.serve()["report"]["verdict"] == "on_gpu"
        machine.publish("b2", ON_GPU, backend="vulkan")
        assert machine.update()[0].outcome == "updated"
        machine.publish("b3", ON_CPU, backend="vulkan")
        report, _ = machine.update()
        assert report.failure
        assert report.failure == ("not-on-gpu", "default: it runs on the CPU")
        assert (machine.active(), machine.runs()) == ("b2", "b2")
        assert machine.servers()["default"]["report"]["verdict"] == "on_gpu"


def test_if_one_of_two_servers_fails_both_go_back(machine: SelfUpdating) -> None:
    machine.serve("a")
    machine.serve("b", "--broken")
    # The stand-in of b2 ends if it is given that argument.
    machine.publish("b2", ("without --broken", "listen"))
    report, _ = machine.update()
    assert {each.name: each.outcome for each in report.servers} == {"a": "back", "b": "back"}
    assert (machine.active(), machine.runs("a"), machine.runs("b")) == ("b1", "b1", "b1")


def test_a_release_that_its_gate_refuses_is_marked_and_nothing_is_restarted(
    machine: SelfUpdating,
) -> None:
    pid = machine.serve()["pid"]
    machine.publish("b2", version=("err no", "exit 1"))
    report, _ = machine.update()
    assert (report.outcome, report.checked, report.servers) == ("rolled-back", "gate", ())
    assert (machine.active(), machine.servers()["default"]["pid"]) == ("b1", pid)
    assert machine.update()[0].outcome == "unchanged"


def test_a_server_that_runs_another_build_is_left_alone(machine: SelfUpdating) -> None:
    machine.publish("b2")
    machine.serve("old")
    machine.run("update")
    machine.publish("b3")
    report, _ = machine.update()
    assert [(each.name, each.outcome) for each in report.servers] == [("old", "left")]
    assert (machine.active(), machine.runs("old")) == ("b3", "b1")


def test_without_a_server_the_last_model_is_started_for_a_moment(machine: SelfUpdating) -> None:
    machine.serve()
    machine.run("stop")
    machine.publish("b2")
    report, _ = machine.update()
    assert (report.outcome, report.checked) == ("updated", "last-model")
    machine.publish("b3", BAD["dies-at-the-first-request"])
    report, _ = machine.update()
    assert (report.outcome, report.checked, report.tried) == ("rolled-back", "last-model", "b3")
    assert machine.active() == "b2"
    assert machine.servers() == {}


def test_a_model_of_hugging_face_is_tried_as_it_was_downloaded(machine: SelfUpdating) -> None:
    machine.run("serve", "--detach", "--", "-hf", "owner/tiny:Q8_0", "--port", "0")
    machine.run("stop")
    machine.publish("b2")
    report, notes = machine.update()
    assert (report.outcome, report.checked) == ("updated", "last-model")
    assert any("starting owner/tiny:Q8_0 with b2" in note for note in notes)
    # This stand-in ends if it is told not to download.
    machine.publish("b3", ("without --offline", "listen"))
    report, _ = machine.update()
    assert (report.outcome, report.checked, report.tried) == ("rolled-back", "last-model", "b3")


def test_without_a_server_a_slow_release_goes_back_unless_the_machine_is_slow(
    machine: SelfUpdating,
) -> None:
    machine.serve()
    machine.run("stop")
    state = machine.home / "llm" / "state"
    keep_speeds(state, machine.model, {"cpu": 100.0})
    machine.publish("b2", ("speed 1000 60", "listen"))
    assert machine.update()[0].outcome == "rolled-back"
    # Another graphics card, or a governor that saves energy: the former build is as slow.
    keep_speeds(state, machine.model, {"cpu": 1000.0})
    machine.publish("b3", ("speed 1000 60", "listen"))
    report, notes = machine.update()
    assert (report.outcome, report.checked) == ("updated", "gate")
    assert any("does no better" in note for note in notes)


def test_without_a_server_and_a_model_the_gate_decides(machine: SelfUpdating) -> None:
    machine.publish("b2", BAD["does-not-start"])
    report, notes = machine.update()
    assert (report.outcome, report.checked) == ("updated", "gate")
    assert any("only the gate has judged" in note for note in notes)


def test_a_server_that_a_user_stops_meanwhile_blames_no_release(machine: SelfUpdating) -> None:
    machine.serve()

    def stop(text: str) -> None:
        if text.startswith("default: restarting"):
            machine.run("stop")

    machine.publish("b2")
    report, _ = machine.update(stop)
    assert (report.outcome, report.checked) == ("updated", "last-model")
    assert [(each.name, each.outcome) for each in report.servers] == [("default", "stopped")]
    assert machine.servers() == {}


@pytest.mark.parametrize("serve", [FAST, BAD["does-not-start"]], ids=["good", "bad"])
def test_an_update_that_is_killed_is_finished_by_the_next_one(
    serve: Sequence[str], machine: SelfUpdating
) -> None:
    machine.serve()
    former, steps = "b1", range(0, 1000, stride(13))
    for number, step in enumerate(steps, start=2):
        new = f"b{number}"
        machine.publish(new, serve)
        killed = machine.killed_at(step)
        # It serves at any time, on one of the two.
        assert machine.runs() in (former, new), step
        machine.update()
        former = new if serve is FAST else former
        assert (machine.active(), machine.runs()) == (former, former), step
        assert read_journal(machine.home / "llm") is None
        marked = [each.release for each in read_marks(machine.home / "llm")]
        assert (new in marked) == (serve is not FAST), step
        if not killed:
            break
    # The sweep went from the first change to beyond the last one.
    assert step > 13


def _at(release: str, *, ready: bool) -> Callable[[Record], bool]:
    """Tell whether a server of this release loads, or serves."""

    def seen(record: Record) -> bool:
        report = record.report
        return report is not None and (report.release, report.ready) == (release, ready)

    return seen


LOADS = ("loading 8",)
"""A server that can be met while it loads."""

STAGES = {
    "loads-the-new-build": _at("b2", ready=False),
    "serves-the-new-build": _at("b2", ready=True),
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("serve", [FAST, BAD["refuses-every-request"]], ids=["good", "bad"])
def test_an_update_that_is_killed_while_its_server_is_exchanged_is_finished(
    serve: Sequence[str], stage: Callable[[Record], bool], machine: SelfUpdating
) -> None:
    supervisor = machine.serve()["supervisor"]
    machine.publish("b2", (*LOADS, *serve))
    assert machine.killed_when(stage)
    machine.wait_for_server()
    assert machine.runs() == "b2"
    machine.update()
    final = "b2" if serve is FAST else "b1"
    assert (machine.active(), machine.runs()) == (final, final)
    assert read_journal(machine.home / "llm") is None
    assert machine.servers()["default"]["supervisor"] == supervisor


def test_a_way_back_that_is_killed_while_its_server_is_exchanged_is_finished(
    tmp_path: Path,
) -> None:
    with self_updating(tmp_path) as machine:
        machine.publish("b1", (*LOADS, *FAST))
        machine.run("install")
        machine.serve()
        machine.publish("b2", BAD["refuses-every-request"])
        returns = _at("b1", ready=False)
        assert machine.killed_when(returns)
        marked = [each.release for each in read_marks(machine.home / "llm")]
        assert (machine.active(), marked) == ("b1", ["b2"])
        report, _ = machine.update()
        assert (report.outcome, report.marked) == ("rolled-back", True)
        assert (machine.active(), machine.runs()) == ("b1", "b1")
        assert read_journal(machine.home / "llm") is None


def test_a_server_that_is_started_while_a_build_is_on_trial_goes_back_with_it(
    machine: SelfUpdating,
) -> None:
    machine.serve()
    machine.publish("b2", BAD["does-not-start"])

    def kill(text: str) -> None:
        if text.startswith("default: restarting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.update(kill)
    # As when memory runs out: systemd starts a service again, and a user a server.
    (record,) = machine.instances.all()
    for process in (record.supervisor, record.server):
        assert process
        process.send(signal.SIGKILL)
        assert process.is_gone_within(PROMPTLY)
    started = machine.serve()
    assert (machine.active(), machine.runs()) == ("b2", "b1")
    (passed,) = started["report"]["fallen_back_from"]
    assert passed["variant"].startswith("b2-")
    assert "42" in passed["reason"]
    report, _ = machine.update()
    assert (report.outcome, report.marked) == ("rolled-back", True)
    assert (machine.active(), machine.runs()) == ("b1", "b1")


def test_a_server_of_which_its_user_wants_no_request_is_sent_none(machine: SelfUpdating) -> None:
    machine.serve(TSUKU_LLM_CANARY="false")
    machine.publish("b2", BAD["dies-at-the-first-request"])
    report, _ = machine.update()
    assert (report.outcome, report.checked) == ("updated", "servers")
    assert machine.runs() == "b2"


def test_a_server_that_was_started_with_another_backend_is_left_alone(
    machine: SelfUpdating,
) -> None:
    machine.serve(TSUKU_LLM_BACKEND="cpu")
    machine.publish("b2", ON_GPU, backend="vulkan")
    report, _ = machine.update()
    assert [(each.name, each.outcome) for each in report.servers] == [("default", "left")]
    assert (machine.active(), machine.runs()) == ("b2", "b1")


def test_llm_release_is_obeyed_in_both_directions(machine: SelfUpdating) -> None:
    machine.serve()
    machine.publish("b2")
    machine.publish("b3")
    chosen = {"chosen": frozenset({"release"})}
    assert machine.update(release="b2", **chosen)[0].outcome == "updated"
    assert machine.runs() == "b2"
    # The group has to go back: the file that all share names the former release.
    assert machine.update(release="b1", **chosen)[0].outcome == "updated"
    assert (machine.active(), machine.runs()) == ("b1", "b1")
    assert machine.update(hold=True)[0].outcome == "unchanged"
    assert machine.update(min_age=99999)[0].outcome == "unchanged"
    assert machine.update()[0].outcome == "updated"
    assert machine.runs() == "b3"


def test_a_release_that_fails_on_one_driver_goes_back_only_there(
    machine: SelfUpdating, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with self_updating(tmp_path / "other") as other:
        other.publish("b1")
        other.run("install")
        # The variable stands for a newer driver, which only this machine has.
        other.serve(NEWER_DRIVER="1")
        machine.serve()
        for each in (machine, other):
            each.publish("b2", ("need NEWER_DRIVER", "listen"))
            each.update()
        assert (machine.active(), machine.runs()) == ("b1", "b1")
        assert (other.active(), other.runs()) == ("b2", "b2")


def test_a_way_back_that_fails_is_told_and_tried_again(machine: SelfUpdating) -> None:
    machine.serve()
    data = machine.home / "llm"
    (former,) = (data / "versions").glob("b1-*")
    server = former / "tree" / "llama-server"
    whole = server.read_bytes()
    machine.publish("b2", BAD["refuses-every-request"])

    def damage(text: str) -> None:
        if "going back" in text:
            # A new file: the running one is in use.
            server.unlink()
            server.write_bytes(b"damaged")

    report, _ = machine.update(damage)
    assert report.outcome == "rolled-back"
    assert report.stuck
    assert (machine.active(), report.active.receipt.release) == ("b2", "b2")
    # A server is not taken from a build that serves badly to one that does not start.
    assert [(each.name, each.outcome) for each in report.servers] == [("default", "left")]
    assert machine.runs() == "b2"
    failure = render.failure(report)
    assert failure
    assert any("default: was left alone" in fact for fact in failure.facts)
    assert any("still active" in fact for fact in failure.facts)
    # Once it is mended, the next run goes back.
    server.unlink()
    server.write_bytes(whole)
    server.chmod(0o755)
    report, _ = machine.update()
    assert (report.stuck, machine.active(), machine.runs()) == (None, "b1", "b1")
    assert read_journal(data) is None
    assert machine.update()[0].outcome == "unchanged"


def test_a_version_that_somebody_chooses_meanwhile_stays_active(machine: SelfUpdating) -> None:
    machine.serve()
    machine.publish("b2")
    machine.run("update")
    machine.run("use", "b1")
    machine.publish("b3", BAD["does-not-start"])

    def choose(text: str) -> None:
        if "going back" in text:
            machine.run("use", "b2")

    report, _ = machine.update(choose)
    assert (report.outcome, machine.active(), machine.runs()) == ("rolled-back", "b2", "b1")


def test_two_updates_at_once_do_the_work_once(machine: SelfUpdating) -> None:
    machine.serve()
    machine.publish("b2")
    reports: list[UnattendedReport] = []

    def second(text: str) -> None:
        if text.startswith("default: restarting"):
            other = threading.Thread(target=lambda: reports.append(machine.update()[0]))
            other.start()
            threads.append(other)

    threads: list[threading.Thread] = []
    assert machine.update(second)[0].outcome == "updated"
    for thread in threads:
        thread.join()
    assert [each.outcome for each in reports] == ["unchanged"]


def told(*arguments: str) -> Sequence[str]:
    """The steps with which a stand-in tells its arguments, besides those of every server."""
    every = ("-h, --help", "-m, --model FNAME", "--host HOST", "--port PORT")
    return tuple(f"out {each}" for each in (*every, *arguments))


def test_a_release_without_an_argument_of_a_server_waits_for_it(machine: SelfUpdating) -> None:
    machine.publish("b2", help=told("--mmap, --no-mmap"))
    machine.run("update")
    before = machine.serve("default", "--no-mmap")
    machine.publish("b3", help=told("-lm, --load-mode MODE"))
    pointer = machine.home / "llm" / "active.json"
    written = (pointer.stat().st_ino, pointer.stat().st_mtime_ns)
    for _ in range(2):  # The release is right, so the next run looks at it again.
        report, notes = machine.update()
        assert (report.outcome, report.tried, report.servers) == ("waiting", "b3", ())
        assert report.failure
        assert report.failure.kind == "arguments"
        assert read_marks(machine.home / "llm") == ()
        assert read_journal(machine.home / "llm") is None
        (line,) = render.lines(report)
        assert line.startswith("b3 waits, b2 stays active (")
        assert "default: b3-" in line
        assert "it has no --no-mmap any more: use --load-mode none" in line
        assert "change its arguments" in line
        assert not any("--no-mmap" in note for note in notes)
        assert render.failure(report) is None
        # Nothing has moved: no server was restarted, and the pointer was not even written.
        assert machine.servers()["default"]["pid"] == before["pid"]
        assert (machine.active(), machine.runs()) == ("b2", "b2")
        assert (pointer.stat().st_ino, pointer.stat().st_mtime_ns) == written
        # The build waits on the disk: the next run downloads nothing.
        assert not [*(machine.home / "llm" / "partials").glob("*")]
    machine.run("stop", "default")
    machine.serve()
    report, _ = machine.update()
    assert (report.outcome, machine.active(), machine.runs()) == ("updated", "b3", "b3")


def test_an_update_warns_of_a_server_that_the_new_build_refuses(machine: SelfUpdating) -> None:
    machine.serve("default", "--no-mmap")
    machine.publish("b2", help=told("-lm, --load-mode MODE"))
    done = machine.user.run("update")
    assert done.code == 0
    assert "warning: the server default will not start with it: b2-" in done.stderr
    assert "use --load-mode none" in done.stderr


def test_a_start_names_an_argument_that_the_build_does_not_have(machine: SelfUpdating) -> None:
    machine.publish("b2", help=told("-lm, --load-mode MODE"))
    machine.run("update")
    done = machine.user.run("serve", "--", "-m", "x.gguf", "--no-mmap")
    assert done.code == 2
    assert "it has no --no-mmap any more: use --load-mode none" in done.stderr
    assert "tsuku-llm serve -- --help" in done.stderr
    # No server was started: it would have said something.
    assert "ended with" not in done.stderr


def test_explain_shows_how_the_build_reads_arguments(machine: SelfUpdating) -> None:
    words = ("explain", "--", "-lm", "none", "--mlock", "--api-key", "hush-hush")
    assert machine.run(*words)["arguments"] == []  # b1 does not tell them
    machine.publish("b2", help=told("-lm, --load-mode MODE", "--api-key KEY"))
    machine.run("update")
    found = machine.run(*words)["arguments"]
    assert [(each["word"], each["values"], each["names"]) for each in found] == [
        ("-lm", ["none"], ["--load-mode"]),
        ("--mlock", [], []),
        ("--api-key", ["***"], []),
    ]
    assert found[1]["problem"] == "it has no --mlock any more: use --load-mode mlock"
    done = machine.user.run(*words)
    assert "also --load-mode" in done.stdout
    assert "hush" not in done.stdout + done.stderr
