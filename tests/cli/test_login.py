"""``service launchd`` and ``service windows``: files that their systems' parsers can read."""

import plistlib
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support.program import Result, environment, run_program

SERVER = ("-m", "/my model.gguf", "--alias", 'a "b" <c> & \\')
BOTH = ("launchd", "windows")
NAMESPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def printed(folder: Path, *words: str, **extra: str) -> Result:
    return run_program("service", *words, env=environment(folder, **extra), cwd=folder)


def agent(text: str) -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(text.encode())
    return found


def in_task(text: str, name: str) -> str:
    """The text of an element of a task; its declaration is about the file's encoding."""
    root = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - our own text
    (element,) = root.iter(f"{NAMESPACE}{name}")
    return element.text or ""


def test_the_agent_serves_with_these_arguments(tmp_path: Path) -> None:
    words = ("launchd", "--name", "big", "--", *SERVER)
    done = printed(tmp_path, *words, TSUKU_LLM_BACKEND="vulkan", HOME=str(tmp_path))
    assert (done.code, done.stderr) == (0, "")
    found = agent(done.stdout)
    own = [sys.executable, "-m", "tsuku_llm", "serve", "--name", "big", "--", *SERVER]
    assert found["ProgramArguments"] == own
    assert found["Label"] == "tsuku-llm-big"
    assert found["WorkingDirectory"] == str(tmp_path)
    assert found["EnvironmentVariables"]["TSUKU_LLM_BACKEND"] == "vulkan"
    assert found["EnvironmentVariables"]["TSUKU_HOME"] == str(tmp_path)
    assert found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["StandardErrorPath"] == str(tmp_path / "Library/Logs/tsuku-llm-big.log")


def test_the_task_serves_in_the_background(tmp_path: Path) -> None:
    done = printed(tmp_path, "windows", "--name", "big", "--", *SERVER)
    assert done.code == 0
    assert "setx: TSUKU_HOME" in done.stderr
    assert in_task(done.stdout, "Command") == sys.executable
    arguments = in_task(done.stdout, "Arguments")
    assert arguments.startswith('-m tsuku_llm serve --name big --detach -- -m "/my model.gguf"')
    assert arguments.endswith('"a \\"b\\" <c> & \\\\"')
    assert in_task(done.stdout, "WorkingDirectory") == str(tmp_path)
    assert in_task(done.stdout, "ExecutionTimeLimit") == "PT0S"


def test_the_files_are_written_with_the_line_that_starts_them(tmp_path: Path) -> None:
    folder = tmp_path / "Library/LaunchAgents"
    done = printed(tmp_path, "launchd", "--output", str(folder), "--", *SERVER)
    assert done.code == 0, done.stderr
    start = "launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/tsuku-llm.plist"
    assert done.stdout.splitlines()[-1] == f"start it with: {start}"
    assert "--output" not in agent((folder / "tsuku-llm.plist").read_text())["ProgramArguments"]
    done = printed(tmp_path, "windows", "--output", ".", "--", *SERVER)
    file = tmp_path / "tsuku-llm.xml"
    # The parser takes the encoding from the file itself.
    root = ET.fromstring(file.read_bytes())  # noqa: S314 - our own text
    assert root.tag == f"{NAMESPACE}Task"
    assert "schtasks /Create /TN tsuku-llm /XML" in done.stdout


@pytest.mark.parametrize("way", BOTH)
def test_a_secret_is_refused(way: str, tmp_path: Path) -> None:
    by_option = printed(tmp_path, way, "--", "--api-key", "K3Y")
    by_variable = printed(tmp_path, way, LLAMA_API_KEY="K3Y")
    for done in (by_option, by_variable):
        assert (done.code, done.stdout) == (2, "")
        assert "--api-key-file FILE" in done.stderr
        assert "K3Y" not in done.stderr


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("other", ["systemd", "--detach", "--exec", "--scope=user"])
def test_it_has_no_option_of_another_way_to_serve(way: str, other: str, tmp_path: Path) -> None:
    assert printed(tmp_path, way, other).code == 2


@pytest.mark.parametrize("way", BOTH)
def test_the_json_has_the_keys_of_a_unit(way: str, tmp_path: Path) -> None:
    told = printed(tmp_path, way, "--json", "--", *SERVER).document["data"]
    assert list(told["units"].values()) == [told["unit"]]
    assert "--json" not in told["unit"]


def test_a_new_user_has_a_place_for_units(tmp_path: Path) -> None:
    """The documented command makes ~/.config/systemd/user, which a new user lacks."""
    folder = tmp_path / ".config/systemd/user"
    done = printed(tmp_path, "systemd", "--output", str(folder), "--", "-m", "m.gguf")
    assert done.code == 0, done.stderr
    assert (folder / "tsuku-llm.service").is_file()
