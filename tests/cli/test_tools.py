"""``run TOOL`` and ``which TOOL`` on a home where a build with tools is installed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.processes import gone
from support.program import COMMAND, Result, environment, run_program
from support.stored import install
from support.tools import open_terminal

from tsuku_llm.steps.choosing.which import tools_of
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the tools are shell scripts")

SCRIPT = b"#!/bin/sh\n"
FILES = {
    "llama-server": SCRIPT + b"echo server",
    "llama-cli": SCRIPT + b'echo "cli $*"; echo said >&2; pwd; cat',
    "llama-bench": SCRIPT + b"exit 5",
    "llama-wait": SCRIPT + b"echo waits; exec sleep 1000",
    "llama-env": SCRIPT + b"env",
    "llama-tty": SCRIPT + b"test -t 0",
    "libggml-base.so.0.9.5": SCRIPT,
    "libggml-cpu-x.so": SCRIPT,
    "README.md": b"no tool",
    "share/other": SCRIPT,
}
LINKS = {"libggml-base.so.0": "libggml-base.so.0.9.5"}
TOOLS = ["llama-bench", "llama-cli", "llama-env", "llama-server", "llama-tty", "llama-wait"]


@pytest.fixture
def installed(home: Path) -> Installed:
    return install(Store(home / "llm"), files=FILES, links=LINKS, device="Vulkan1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the user is."""
    folder = tmp_path / "work"
    folder.mkdir(mode=0o755)
    return folder


def run(home: Path, folder: Path, *arguments: str, **extra: str) -> Result:
    return run_program("run", *arguments, env=environment(home, **extra), cwd=folder)


def test_the_tools_are_the_programs_beside_the_server(installed: Installed) -> None:
    assert list(tools_of(installed.receipt)) == TOOLS


def test_a_windows_build_has_tools_without_their_suffix(home: Path) -> None:
    files = {"llama-server.exe": b"MZ", "llama-cli.exe": b"MZ", "ggml.dll": b"MZ"}
    installed = install(Store(home / "llm"), files=files, links={}, server="llama-server.exe")
    assert tools_of(installed.receipt) == {
        "llama-cli": "llama-cli.exe",
        "llama-server": "llama-server.exe",
    }


def test_a_tool_runs_in_the_users_folder_with_its_arguments_and_streams(
    installed: Installed, home: Path, folder: Path
) -> None:
    done = subprocess.run(
        [*COMMAND, "run", "llama-cli", "--", "-m", "x.gguf", "--json"],
        env=environment(home),
        cwd=folder,
        input="typed",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"cli -m x.gguf --json\n{folder}\ntyped"
    assert done.stderr.splitlines()[1:] == [installed.receipt.line, "said"]


@pytest.mark.usefixtures("installed")
def test_a_tool_gets_the_terminal(home: Path, folder: Path) -> None:
    ours, theirs = open_terminal()
    line = [*COMMAND, "run", "llama-tty"]
    with subprocess.Popen(line, env=environment(home), cwd=folder, stdin=theirs) as child:
        assert child.wait() == 0
    os.close(ours)
    os.close(theirs)


@pytest.mark.usefixtures("installed")
def test_a_tools_exit_code_and_signal_are_passed_on(home: Path, folder: Path) -> None:
    assert run(home, folder, "llama-bench").code == 5
    line = [*COMMAND, "run", "llama-wait"]
    with subprocess.Popen(line, env=environment(home), cwd=folder, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"waits\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        assert gone(child.pid)


@pytest.mark.usefixtures("installed")
def test_an_unknown_tool_is_an_error_that_lists_the_tools(home: Path, folder: Path) -> None:
    done = run(home, folder, "llama-quantize", "--dry-run", "--json")
    error = done.document["error"]
    assert (done.code, error["code"]) == (7, "not-installed")
    assert error["facts"] == [f"tool: {name}" for name in TOOLS]
    for name in ("../llama-cli", "libggml-cpu-x.so"):
        assert run(home, folder, name).code == 7
    assert run(home, folder, "").code == 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lama-cli", "did you mean llama-cli?"),
        ("llama-clii", "did you mean llama-cli?"),
        ("llama-quantize", "run one of these: "),
    ],
)
def test_tools_are_not_alike_because_each_begins_with_llama(
    home: Path, folder: Path, name: str, hint: str
) -> None:
    """An index build brings no llama-bench; "did you mean llama-server?" was no help."""
    told = run(home, folder, name, "--dry-run", "--json").document["error"]["hint"]
    assert told.startswith(hint)


def test_X18_a_dry_run_shows_the_arguments_and_the_removed_variables(
    installed: Installed, home: Path, folder: Path
) -> None:
    extra = {"LLAMA_ARG_CTX_SIZE": "512", "LD_PRELOAD": "libm.so.6", "OTHER": "x"}
    words = ("llama-cli", "--dry-run", "--", "-m", "a b.gguf")
    told = run(home, folder, *words[:2], "--json", *words[2:], **extra).document["data"]
    path = str(installed.tree / "llama-cli")
    assert told == {
        "id": installed.id,
        "argv": [path, "-m", "a b.gguf"],
        "cwd": str(folder),
        "environment": {"LLAMA_ARG_CTX_SIZE": "512"},
        "removed": ["LD_PRELOAD"],
        "placement": None,
        "preset": None,
    }
    shown = run(home, folder, *words, **extra).stdout.splitlines()
    assert shown == [
        installed.receipt.line,
        f"in {folder}",
        "with LLAMA_ARG_CTX_SIZE=512",
        "without LD_PRELOAD",
        f"would run: {path} -m 'a b.gguf'",
    ]


@pytest.mark.usefixtures("installed")
def test_X08_a_tool_chooses_its_devices_and_gets_no_foreign_code(home: Path, folder: Path) -> None:
    env = {"GGML_BACKEND_PATH": "/evil.so", "DYLD_X": "1"}
    told = run(home, folder, "llama-env", **env).stdout.splitlines()
    assert not [line for line in told if line.startswith("LLAMA_ARG_DEVICE")]
    assert not [line for line in told if line.startswith(("GGML_BACKEND_PATH", "DYLD_"))]
    told = run(home, folder, "llama-env", LLAMA_ARG_DEVICE="CUDA0").stdout.splitlines()
    assert "LLAMA_ARG_DEVICE=CUDA0" in told


def test_X01_a_changed_tree_is_not_run(installed: Installed, home: Path, folder: Path) -> None:
    server = installed.tree / "llama-server"
    server.write_bytes(server.read_bytes() + b"x")
    done = run(home, folder, "llama-cli")
    assert (done.code, done.stdout) == (5, "")


def test_N01_a_foreign_plugin_is_moved_out_of_the_tree(
    installed: Installed, home: Path, folder: Path
) -> None:
    (installed.tree / "libggml-evil.so").write_bytes(b"x")
    done = run(home, folder, "llama-cli")
    assert done.code == 0, done.stderr
    (moved,) = (home / "llm/set-aside").rglob("libggml-evil.so")
    assert f"libggml-evil.so is not part of the build, and was moved to {moved}" in done.stderr
    assert not (installed.tree / "libggml-evil.so").exists()


def test_N01_a_tool_does_not_run_in_a_folder_of_the_store(installed: Installed, home: Path) -> None:
    for inside in (installed.tree, installed.path, home / "llm"):
        done = run(home, inside, "llama-cli")
        assert (done.code, done.stdout) == (6, ""), inside
        assert "belongs to tsuku-llm" in done.stderr


@pytest.mark.usefixtures("installed")
def test_X06_a_tool_does_not_start_next_to_a_foreign_plugin(home: Path, folder: Path) -> None:
    for name in ("libggml-cpu-x.so", "ggml-cpu.dll", "libggml-metal.dylib"):
        (folder / name).write_bytes(b"evil")
        done = run(home, folder, "llama-cli")
        assert (done.code, done.stdout) == (6, "")
        assert f"would load {name} from the current folder" in done.stderr
        (folder / name).unlink()
    (folder / "ggml-model-q4.gguf").write_bytes(b"a model")
    assert run(home, folder, "llama-cli").code == 0


@pytest.mark.usefixtures("installed")
def test_X06_a_tool_does_not_start_in_a_folder_that_others_can_write(
    home: Path, folder: Path
) -> None:
    for mode in (0o777, 0o1777):
        folder.chmod(mode)
        done = run(home, folder, "llama-cli")
        assert (done.code, done.stdout) == (6, "")
        assert str(folder) in done.stderr


def test_which_prints_the_path_of_a_tool(installed: Installed, home: Path, folder: Path) -> None:
    done = run_program("which", "llama-cli", env=environment(home), cwd=folder)
    assert done == Result(0, f"{installed.tree / 'llama-cli'}\n", "")
    assert run_program("which", "nothing", env=environment(home), cwd=folder).code == 7


@pytest.mark.usefixtures("installed")
def test_a_tools_arguments_go_after_two_dashes(home: Path, folder: Path) -> None:
    done = run(home, folder, "llama-cli", "-m", "x.gguf")
    assert done.code == 2
    assert "after --: tsuku-llm run llama-cli -- -m x.gguf" in done.stderr
    done = run(home, folder, "llama-cli", "--json")
    assert (done.code, done.document["error"]["code"]) == (2, "bad-usage")


@pytest.mark.usefixtures("installed")
def test_a_removed_working_folder_is_one_error(home: Path, folder: Path) -> None:
    line = f"rmdir '{folder}' && exec \"$@\""
    done = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, "run", "llama-cli"],
        env=environment(home),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error[bad-usage]: the current folder")
