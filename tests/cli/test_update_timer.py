"""``update`` for a timer, as a user types it: its units, its answer, its metrics and its marks."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.convergence import SelfUpdating, self_updating
from support.program import environment, run_program
from support.user_systemd import verify_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

SERVICE, TIMER = "tsuku-llm-update.service", "tsuku-llm-update.timer"


def units(folder: Path, *words: str, **extra: str) -> dict[str, str]:
    done = run_program(
        *("update", "--systemd-unit", "--json", *words),
        env=environment(folder, **extra),
        cwd=folder,
    )
    assert done.code == 0, done.stderr
    found: dict[str, str] = done.document["data"]["units"]
    assert [*found] == [SERVICE, TIMER]
    return found


def option(unit: str, name: str) -> str:
    (line,) = (line for line in unit.splitlines() if line.startswith(f"{name}="))
    return line.partition("=")[2]


@pytest.mark.parametrize(
    ("window", "calendar", "delay", "persistent"),
    [
        (None, "*-*-* 00:00:00", "1439min", "yes"),
        ("02:00-05:00", "*-*-* 02:00:00", "180min", "no"),
        ("23:30-1:00", "*-*-* 23:30:00", "90min", "no"),
        ("0:00-0:00", "*-*-* 00:00:00", "1439min", "no"),
    ],
)
def test_systemd_accepts_the_units_and_each_machine_has_its_own_moment(
    window: str | None, calendar: str, delay: str, persistent: str, tmp_path: Path
) -> None:
    made = units(tmp_path, *(("--window", window) if window else ()))
    assert verify_all(made, tmp_path) == ""
    timer = made[TIMER]
    assert (option(timer, "OnCalendar"), option(timer, "RandomizedDelaySec")) == (calendar, delay)
    assert option(timer, "Persistent") == persistent
    # Otherwise nothing above was verified.
    assert verify_all({**made, TIMER: timer.replace("*-*-*", "never")}, tmp_path) != ""


@pytest.mark.parametrize(
    ("folder", "start"),
    [
        ("systemd/system", "systemctl daemon-reload && systemctl enable --now "),
        ("systemd/user", "systemctl --user daemon-reload && systemctl --user enable --now "),
    ],
)
def test_the_printed_command_starts_the_timer_of_the_manager_that_gets_it(
    folder: str, start: str, tmp_path: Path
) -> None:
    """The page about rings writes it into /etc/systemd/system, where 'systemctl --user' is wrong.

    systemd.unit(5) lists the folders of each manager.
    """
    done = run_program(
        *("update", "--systemd-unit", "--output", folder), env=environment(tmp_path), cwd=tmp_path
    )
    assert f"start it with: {start}{TIMER}\n" in done.stdout
    unit = (tmp_path / folder / TIMER).read_text()
    assert f"#   {start}{TIMER}\n" in unit
    assert f"{folder}/tsuku-llm-update.{{service,timer}}" in unit
    assert ("enable-linger" in unit) == ("--user" in start)


@pytest.mark.parametrize("window", ["2-5", "02:00", "24:00-25:00", "02:60-03:00", "a-b", "02:00-"])
def test_a_window_that_is_none_is_refused(window: str, tmp_path: Path) -> None:
    done = run_program(
        "update", "--systemd-unit", "--window", window, env=environment(tmp_path), cwd=tmp_path
    )
    assert done.code == 2
    assert "02:00-05:00" in done.stderr


def test_the_service_has_the_settings_and_no_secret(tmp_path: Path) -> None:
    secret = "https://anna:pass@proxy:3128"
    made = units(
        tmp_path,
        *("--channel", "canary", "--metrics", "a b.prom"),
        TSUKU_LLM_MIN_AGE="3",
        HTTPS_PROXY=secret,
        NO_PROXY="localhost",
        SSL_CERT_FILE="/etc/ca 1.pem",
    )
    service = made[SERVICE]
    assert verify_all(made, tmp_path) == ""
    words = shlex.split(option(service, "ExecStart"))
    assert words[:3] == [sys.executable, "-m", "tsuku_llm"]
    expected = ["update", "--unattended", "--metrics", str(tmp_path / "a b.prom")]
    assert words[3:] == [*expected, "--channel", "canary"]
    for line in ("TSUKU_LLM_MIN_AGE=3", "NO_PROXY=localhost", '"SSL_CERT_FILE=/etc/ca 1.pem"'):
        assert f"\nEnvironment={line}\n" in service
    assert "pass" not in "".join(made.values())
    file = Path(option(service, "EnvironmentFile"))
    assert secret in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_units_are_written_where_the_user_wants_them(tmp_path: Path) -> None:
    words = ("update", "--systemd-unit", "--output", str(tmp_path / "units"))
    done = run_program(*words, env=environment(tmp_path), cwd=tmp_path)
    assert done.code == 0
    assert sorted(path.name for path in (tmp_path / "units").iterdir()) == [SERVICE, TIMER]
    assert "systemctl --user enable --now tsuku-llm-update.timer" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--check", "--unattended"),
        ("--check", "--systemd-unit"),
        ("--window", "02:00-05:00"),
        ("--unattended", "--output", "x"),
        ("--metrics", "x"),
        ("--check", "--metrics", "x"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    assert run_program("update", *words, env=environment(tmp_path), cwd=tmp_path).code == 2


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SelfUpdating]:
    with self_updating(tmp_path) as machine:
        machine.publish("b1")
        machine.run("install")
        yield machine


def metrics(file: Path) -> dict[str, Any]:
    """The value of each metric that has no labels, and the labels of each other one."""
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(file.read_text()):
        for sample in family.samples:
            name = sample.name.removeprefix("tsuku_llm_update_")
            found.setdefault(name, []).append(sample.labels or sample.value)
    return found


def test_an_update_that_goes_back_is_exit_code_9_and_is_shown_everywhere(
    machine: SelfUpdating, tmp_path: Path
) -> None:
    machine.serve("a")
    machine.publish("b2", ("err the flux is open", "exit 42"))
    file = tmp_path / "update.prom"
    done = machine.user.run("update", "--unattended", "--json", "--metrics", str(file))
    document = done.document
    assert (done.code, document["exit_code"], document["status"]) == (9, 9, "error")
    assert document["error"]["code"] == "update-rolled-back"
    assert document["error"]["message"].startswith("b2 was rolled back: a: ")
    assert "the flux is open" in str(document)
    assert document["error"]["facts"][0] == "a: runs the former build again"
    assert "the flux is open" in document["data"]["servers"][0]["detail"]
    data = document["data"]
    assert (data["outcome"], data["release"], data["tried"]) == ("rolled-back", "b1", "b2")
    assert [each["outcome"] for each in data["servers"]] == ["back"]
    said = metrics(file)
    assert said["exit_code"] == [9.0]
    assert said["rolled_back"] == [{"release": "b2", "repository": "test"}]
    assert said["info"][0]["outcome"] == "rolled-back"
    # Each command that chooses or lists says it, and how to try again.
    for words in (["list"], ["doctor"], ["update", "--check"], ["explain"]):
        told = machine.user.run(*words)
        assert "b2" in told.stdout + told.stderr, words
        assert "tsuku-llm update --retry" in told.stdout + told.stderr, words
        data = machine.user.run(*words, "--json").document["data"]
        data = data.get("choice", data)
        found = data["rolled_back"] if "rolled_back" in data else data["passed_over"]
        assert [each["release"] for each in found] == ["b2"], words
    done = machine.user.run("update", "--unattended", "--json", "--metrics", str(file))
    assert (done.code, done.document["data"]["outcome"]) == (0, "unchanged")
    assert metrics(file)["rolled_back"] == [{"release": "b2", "repository": "test"}]
    assert machine.run("update", "--retry")["installed"]["id"].startswith("b2-")
    assert machine.run("list")["rolled_back"] == []


def test_a_named_install_takes_a_marked_release_and_forgets_the_mark(machine: SelfUpdating) -> None:
    machine.publish("b2", version=("err no", "exit 1"))
    assert machine.user.run("update", "--unattended").code == 9
    assert machine.user.run("install").code == 0
    assert machine.active() == "b1"
    # It has been mended under the same name.
    machine.publish("b2")
    assert machine.run("install", "--release", "b2")["installed"]["id"].startswith("b2-")
    assert machine.run("list")["rolled_back"] == []


def test_an_error_is_in_the_metrics_too(machine: SelfUpdating, tmp_path: Path) -> None:
    (machine.shop.root / "repository").rename(machine.shop.root / "gone")
    file = tmp_path / "update.prom"
    done = machine.user.run("update", "--unattended", "--metrics", str(file))
    assert done.code == 4
    said = metrics(file)
    assert said["exit_code"] == [4.0]
    assert "info" not in said


def test_metrics_that_cannot_be_written_do_not_hide_the_error(
    machine: SelfUpdating, tmp_path: Path
) -> None:
    (machine.shop.root / "repository").rename(machine.shop.root / "gone")
    file = tmp_path / "nowhere" / "update.prom"
    done = machine.user.run("update", "--unattended", "--metrics", str(file))
    assert (done.code, done.stderr.count("error[")) == (4, 1)
    assert f"{file} was not written: No such file or directory" in done.stderr


def test_damaged_notes_are_one_error_with_a_way_out(machine: SelfUpdating) -> None:
    data = machine.home / "llm"
    machine.publish("b2")
    for damage in ("", "{", '{"format": 2}', '{"format": 1, "rolled_back": [{"release": 3}]}'):
        (data / "rolled-back.json").write_text(damage)
        for words in (["update", "--check"], ["update", "--unattended"], ["explain"]):
            done = machine.user.run(*words)
            assert (done.code, "tsuku-llm update --retry" in done.stderr) == (6, True), words
        # A list shows what it can.
        assert "b1" in machine.user.run("list").stdout
    assert machine.run("update", "--retry", "--check")["newer"]
    (data / "unattended.json").write_text('{"format": 1, "former": "../../etc"}')
    done = machine.user.run("update", "--unattended")
    assert (done.code, f"rm {data / 'unattended.json'}" in done.stderr) == (6, True)
    (data / "unattended.json").unlink()
    assert machine.user.run("update", "--unattended").code == 0
    assert machine.active() == "b2"


def test_the_documented_restart_of_system_services_is_for_a_new_build_only(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rings.md").read_text("utf-8")
    (drop_in,) = (text for text in page.split("```ini\n")[1:] if "ExecStartPost" in text)
    lines = drop_in.partition("```")[0]
    made = units(tmp_path)
    service = made[SERVICE].replace("[Service]\n", lines)
    assert verify_all({**made, SERVICE: service}, tmp_path, "--system") == ""
    before, after = (
        shlex.split(option(service, name))[-1] for name in ("ExecStartPre", "ExecStartPost")
    )
    # Stand-ins for the program and for systemctl: the shell's words are what is shown.
    for name, text in {
        "tsuku-llm": 'cat "$RUNTIME_DIRECTORY"/../active',
        "systemctl": 'echo "$@" >> "$RUNTIME_DIRECTORY"/../restarts',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "run").mkdir()
    env = {"PATH": f"{tmp_path}:{os.defpath}", "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    for build in ("b1", "b1", "b2"):
        subprocess.run(["sh", "-c", before], env=env, check=False)
        (tmp_path / "active").write_text(build)
        subprocess.run(["sh", "-c", after], env=env, check=True)
    restarts = (tmp_path / "restarts").read_text().splitlines()
    assert restarts == ["try-restart tsuku-llm.service"] * 2  # at first nothing was active
