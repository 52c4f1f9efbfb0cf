"""Whole commands in front of files of others: one error of ours or an answer, and no hang."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.model_shelves import ollama_model, small_model
from support.program import Result, environment, run_program

from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.report import StartReport

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes and /proc")

SPOILS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "kernel": lambda path: path.symlink_to("/proc/self/mem"),
    "folder": Path.mkdir,
}


def run(home: Path, *words: str, **extra: str) -> Result:
    """Run a command, whose errors are ours."""
    extra = {"HOME": str(home), "OLLAMA_MODELS": "", **extra}
    done = run_program(*words, env=environment(home, **extra))
    assert "error[bug]" not in done.stderr
    return done


def servers(home: Path, **changes: Any) -> Instances:
    """Write the records of two servers that seem to run; change the first one's report."""
    us = Process.of(os.getpid())
    assert us
    report = StartReport(
        name="gpu",
        release="b11429",
        id="b11429-vulkan-0123456789ab",
        requested="auto",
        detected=("cpu",),
        selected="cpu",
        supervisor=us.pid,
        pid=us.pid,
        host="127.0.0.1",
        port=8080,
        started_at="2026-11-21T12:00:00Z",
        ready=True,
    )
    instances = Instances(home / "llm" / "state")
    instances.claim(Record(name="starting", supervisor=us, host="127.0.0.1", port=1))
    instances.claim(Record(name="gpu", supervisor=us, host="127.0.0.1", port=8080, report=report))
    path = instances.folder / "gpu.json"
    document = json.loads(path.read_text())
    document["report"] |= changes
    path.write_text(json.dumps(document))
    return instances


BAD_TIMES = (
    *("", "yesterday", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-21T24:00:01Z"),
    *("99999-01-01T00:00:00Z", "2026-11-21T12:00:00+00:00", "٢026-11-21T12:00:00Z", 1e9, None),
    *("0000-01-01T00:00:00Z", ["2026-11-21T12:00:00Z"]),
)


@pytest.mark.parametrize("time", BAD_TIMES)
def test_N06_a_wrong_time_hides_no_other_server(time: object, tmp_path: Path) -> None:
    servers(tmp_path, started_at=time)
    shown = run(tmp_path, "status", "--prometheus")
    assert shown.code == 0
    assert 'name="starting"' in shown.stdout
    listed = run(tmp_path, "status", "--json")
    assert listed.code == 0
    assert [each["name"] for each in listed.document["data"]["servers"]] == ["starting"]


def test_the_years_that_exist_are_times(tmp_path: Path) -> None:
    servers(tmp_path, started_at="0001-01-01T00:00:00Z")
    assert 'name="gpu"' in run(tmp_path, "status", "--prometheus").stdout
    (tmp_path / "9999").mkdir()
    servers(tmp_path / "9999", started_at="9999-12-31T23:59:59Z")
    assert 'name="gpu"' in run(tmp_path / "9999", "status", "--prometheus").stdout


BAD_PAGES = (
    *("file:///etc/passwd", "javascript:alert(1)", "-P x", "--new-window", "data:text/html,x", ""),
    *("http://", "ftp://h/", " http://h/", "http://h/\n-P x", "HTTP//h/", "http://h/\ud800", 7),
)


@pytest.mark.parametrize("page", BAD_PAGES)
def test_N06_only_a_web_page_is_opened(page: object, tmp_path: Path) -> None:
    servers(tmp_path, page_url=page)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    browser.chmod(0o755)
    done = run(tmp_path, "open", "gpu", BROWSER=f"{browser} %s")
    assert done.code != 0
    assert not opened.exists()
    # The good one is opened by the same browser.
    servers_folder = tmp_path / "good"
    servers_folder.mkdir()
    servers(servers_folder, page_url="http://127.0.0.1:8080/")
    assert run(servers_folder, "open", "gpu", BROWSER=f"{browser} %s").code == 0
    assert opened.read_text().strip() == "http://127.0.0.1:8080/"


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", ["gpu.log", "gpu.log.1", "gpu.json"])
def test_N06_a_log_or_record_that_is_no_file_is_told(spoil: str, name: str, tmp_path: Path) -> None:
    instances = servers(tmp_path)
    (instances.folder / "gpu.log").write_text("a line\n")
    (instances.folder / name).unlink(missing_ok=True)
    SPOILS[spoil](instances.folder / name)
    for words in (("logs", "gpu"), ("logs", "gpu", "--json")):
        done = run(tmp_path, *words)
        assert "root:" not in done.stdout
        assert (done.code == 0) == (name == "gpu.json"), done
    assert run(tmp_path, "status").code == 0


@pytest.mark.parametrize("spoil", SPOILS)
def test_N06_a_recording_is_no_link_and_no_pipe(spoil: str, tmp_path: Path) -> None:
    target = tmp_path / "machine.json"
    SPOILS[spoil](target)
    before = target.lstat()
    for words in (("probe", "--record", str(target)), ("explain", "--hardware", str(target))):
        done = run(tmp_path, *words)
        assert done.code not in (0, 70)
        assert "error[" in done.stderr
    # Neither written nor replaced.
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("spoil", SPOILS)
def test_N06_metrics_are_not_written_through_a_link(spoil: str, tmp_path: Path) -> None:
    target = tmp_path / "x.prom"
    SPOILS[spoil](target)
    before = target.lstat()
    done = run(tmp_path, "status", "--prometheus", "--output", str(target))
    assert done.code != 0
    assert target.lstat().st_ino == before.st_ino


def test_a_recording_replaces_an_older_one_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "machine.json"
    target.write_text("old")
    target.chmod(0o600)
    assert run(tmp_path, "probe", "--record", str(target)).code == 0
    assert json.loads(target.read_text())["format"] == 1
    assert target.stat().st_mode & 0o777 == 0o600


POINTERS: dict[str, bytes] = {
    "null": b'{"downloadsFolder": null}',
    "NUL": b'{"downloadsFolder": "/a\\u0000b"}',
    "lone surrogate": b'{"downloadsFolder": "/\\ud800"}',
    "number": b'{"downloadsFolder": 9223372036854775808}',
    "deep": b'{"downloadsFolder": ' + b"[" * 9000 + b"]" * 9000 + b"}",
    "relative": b'{"downloadsFolder": ".."}',
    "a device": b'{"downloadsFolder": "/dev/zero"}',
    "1e999": b'{"downloadsFolder": 1e999}',
}


@pytest.mark.parametrize("pointer", POINTERS)
def test_N06_a_bad_pointer_of_lm_studio_hides_no_model(pointer: str, tmp_path: Path) -> None:
    ollama_model(tmp_path / ".ollama" / "models", "good:1b")
    small_model(tmp_path / ".lmstudio" / "models" / "a" / "b" / "other.gguf")
    (tmp_path / ".lmstudio" / "settings.json").write_bytes(POINTERS[pointer])
    (tmp_path / ".lmstudio-home-pointer").write_bytes(b"/a\0b")
    done = run(tmp_path, "models", "--json")
    assert done.code == 0
    assert {"good:1b"} < {each["name"] for each in done.document["data"]["models"]}


@pytest.mark.parametrize("spoil", SPOILS)
def test_N06_a_bad_config_file_is_one_error(spoil: str, tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    SPOILS[spoil](folder / "config.toml")
    done = run(tmp_path, "config", "list", TSUKU_LLM_CONFIG=str(folder / "config.toml"))
    assert done.code in (0, 2)
