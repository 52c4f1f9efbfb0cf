"""Completion: in real shells, and what the program answers to their scripts."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.model_shelves import ollama_model, small_model
from support.program import COMMAND, TIMEOUT, Result, environment, run_program
from support.stored import install
from support.tools import open_terminal, require_tool

from tsuku_llm.cli.completion import COMPLETE, LINE, REPLACED
from tsuku_llm.cli.table import COMMANDS
from tsuku_llm.config.keys import KEYS
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.store.store import Store

Run = Callable[..., Result]
Complete = Callable[..., list[str]]

SHELLS = ("bash", "zsh", "fish", "powershell")

posix = pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")


@pytest.fixture
def home(home: Path) -> Path:
    """A home with one version, one server and a config file."""
    install(Store(home / "llm"))
    servers = Instances(home / "llm" / "state")
    servers.folder.mkdir(mode=0o700, parents=True)
    servers.write(
        Record(name="big", supervisor=Process(1, "never"), host="127.0.0.1", port=1, server=None)
    )
    (home / "config.toml").write_text("[llm]\nchannel = 'nightly'\n")
    return home


def ask(
    words: str, home: Path, shell: str = "bash", *, cwd: str | None = None, **extra: str
) -> Result:
    """Complete the last of some words, as the script of a shell asks for it."""
    # bash replaces what follows the last of these.
    replaced = re.split("[ :=]", words)[-1]
    env = {COMPLETE: shell, LINE: f"tsuku-llm {words}", REPLACED: replaced, **extra}
    return run_program(env=environment(home, **env), cwd=Path(cwd) if cwd else None)


@pytest.fixture
def complete(home: Path) -> Complete:
    """Return the values that complete the last of some words."""

    def values(words: str, **extra: str) -> list[str]:
        result = ask(words, home, **extra)
        assert (result.code, result.stderr) == (0, "")
        return result.stdout.splitlines()[1:]

    return values


# --- what is completed -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("insta", ["install"]),
        ("config se", ["set"]),
        ("help repository ad", ["add"]),
        ("install --dry", ["--dry-run"]),
        ("install --backend openv", ["openvino"]),
        ("install --backend cuda-13", ["cuda-13.4"]),
        ("serve --backend=openv", ["openvino"]),
        ("install --channel stab", ["stable"]),
        ("install --release b1142", ["b11429"]),
        ("install --release v0.6", ["v0.6.0"]),
        ("list --repository off", ["official"]),
        ("repository refresh off", ["official"]),
        ("repository remove off", []),
        ("config set llm.up", ["llm.update_check"]),
        ("config set llm.update_check ", ["true", "false"]),
        ("config set llm.placement ", ["auto", "all", "off"]),
        ("config set llm.backend openv", ["openvino"]),
        ("config set llm.prefer nat", ["native"]),
        ("config set llm.release inst", ["installed"]),
        ("config set llm.probe_timeout ", ["20s"]),
        ("config set llm.none ", []),
        ("use b100-cpu", ["b100-cpu-"]),
        ("uninstall cp", ["cpu"]),
        ("stop b", ["big"]),
        ("logs --name b", ["big"]),
        ("status ", ["big"]),
        ("run llama", ["llama-server"]),
        ("completion f", ["fish"]),
        ("service systemd --scope sy", ["system"]),
        ("serve --superv", []),
        ("repository pa", []),
        ("nosuch x", []),
        ("serve -- -m ", []),
    ],
)
def test_a_word_is_completed(words: str, values: list[str], complete: Complete) -> None:
    found = complete(words)
    assert len(found) == len(values), found
    for value, expected in zip(found, values, strict=True):
        assert value.startswith(expected)


def test_each_setting_has_values_that_it_takes(complete: Complete) -> None:
    for key in KEYS:
        for value in filter(None, complete(f"config set {key.name} ")):
            key.parse(value)


def test_every_command_is_offered_first(complete: Complete, program: Run) -> None:
    shown = program("--help").stdout
    assert all(f"\n  {name} " in shown for name in complete(""))
    assert complete("") == list(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_a_value_after_an_equals_sign_keeps_its_option(shell: str, home: Path) -> None:
    result = ask("install --backend=openv", home, shell)
    assert "--backend=openvino" in re.split(r"[\n:\t]", result.stdout)


def test_the_names_of_models_are_offered_with_files_and_folders(
    complete: Complete, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    small_model(own / "Qwen.gguf")
    folder = tmp_path / "folder"
    for name in ("Qwen-2", "Qwen 3", ".hidden"):
        (folder / name).mkdir(parents=True)
    for name in ("Qwen-x.GGUF", "Qwen.txt", "Qwen\nplain.gguf", "other.gguf", "-x.gguf"):
        (folder / name).touch()
    found = complete("serve -m Qwen", cwd=str(folder), TSUKU_LLM_MODEL_PATH=str(own))
    assert found == ["Qwen", "'Qwen 3/'", "Qwen-2/", "Qwen-x.GGUF"]
    found = complete("bench -m ", cwd=str(folder), TSUKU_LLM_MODEL_PATH=str(own))
    assert found == ["Qwen", "./-x.gguf", "'Qwen 3/'", "Qwen-2/", "Qwen-x.GGUF", "other.gguf"]
    # No name begins so: the shell itself completes files.
    words = "explain --model oth"
    assert ask(words, tmp_path, TSUKU_LLM_MODEL_PATH=str(own)).stdout == "files\n"


def test_a_broken_config_file_leaves_the_models_of_other_programs(
    home: Path, complete: Complete, tmp_path: Path
) -> None:
    (home / "config.toml").write_bytes(b"\xff[")
    ollama_model(tmp_path / ".ollama" / "models", "qwen2.5:7b")
    assert complete("serve -m qw", HOME=str(tmp_path)) == ["qwen2.5:7b"]
    # bash replaces what follows the colon.
    assert complete("serve -m qwen2.5:", HOME=str(tmp_path)) == ["7b"]


# --- the shells --------------------------------------------------------------------------

LINES = {
    "tsuku-llm insta": "tsuku-llm install",
    "tsuku-llm config set llm.up": "tsuku-llm config set llm.update_check",
    "tsuku-llm config set llm.placement al": "tsuku-llm config set llm.placement all",
    "tsuku-llm serve --backend=openv": "tsuku-llm serve --backend=openvino",
    "tsuku-llm install --allow-r": "tsuku-llm install --allow-revoked",
    "tsuku-llm stop b": "tsuku-llm stop big",
    "tsuku-llm serve -- -m mod": "tsuku-llm serve -- -m model.gguf",
    "tsuku-llm serve -m mod": "tsuku-llm serve -m model.gguf",
    "tsuku-llm serve -m qwen2.5:7": "tsuku-llm serve -m qwen2.5:7b",
    "tsuku-llm explain --model=qwen2.5:1": "tsuku-llm explain --model=qwen2.5:14b",
    "tsuku-llm bench -m lms/gem": "tsuku-llm bench -m lms/gemma-GGUF:Q8_0",
}
"""What is typed before TAB, and what it becomes."""


@pytest.fixture
def shell_home(home: Path, tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The environment of a shell with this program on its PATH, and a folder with a model."""
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    for each in (programs, folder):
        each.mkdir()
    starter = programs / "tsuku-llm"
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    starter.chmod(0o755)
    (folder / "model.gguf").touch()
    for tag in ("7b", "14b"):
        ollama_model(tmp_path / ".ollama" / "models", f"qwen2.5:{tag}")
    small_model(tmp_path / ".lmstudio" / "models" / "lms" / "gemma-GGUF" / "gemma-Q8_0.gguf")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    env = environment(home, PATH=path, HOME=str(tmp_path), TERM="xterm", COLUMNS="200")
    return {name: value for name, value in env.items() if name not in ("EDITOR", "VISUAL")}, folder


SETUP = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
}
LOAD = {
    "bash": 'eval "$(tsuku-llm completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -D -u; eval "$(tsuku-llm completion zsh)"',
}


@posix
@pytest.mark.parametrize("shell", SETUP)
def test_a_shell_completes_what_is_typed(
    shell: str, shell_home: tuple[dict[str, str], Path]
) -> None:
    env, folder = shell_home
    # Ctrl-A goes to the begin of the line, so that the shell prints what the line became.
    typed = "".join(f"{line}\t\x01echo got: \n" for line in LINES)
    ours, theirs = open_terminal()
    os.write(ours, f"{LOAD[shell]}\n{typed}exit\n".encode())
    with subprocess.Popen(
        [require_tool(shell), *SETUP[shell]],
        env=env,
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as child:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the shell has ended
            pass
        finally:
            os.close(ours)
        assert child.wait(TIMEOUT) == 0
    # The answers of echo; the terminal also shows what is typed, with "echo" before it.
    got = re.findall(r"got: (tsuku-llm .*?) ?\r?$", said.decode(errors="replace"), re.MULTILINE)
    assert got == list(LINES.values()), said.decode(errors="replace")


@posix
def test_fish_completes_what_is_typed(shell_home: tuple[dict[str, str], Path]) -> None:
    env, folder = shell_home
    ask_fish = "".join(f"echo got: (complete -C {shlex.quote(line)})\n" for line in LINES)
    done = subprocess.run(
        [
            require_tool("fish"),
            "--no-config",
            "-c",
            f"tsuku-llm completion fish | source\n{ask_fish}",
        ],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    got = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    # fish gives the last word only.
    assert got == [f"got: {line.split(' ')[-1]}" for line in LINES.values()], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, as_json: Callable[..., Any], program: Run) -> None:
    printed = program("completion", shell)
    assert (printed.code, printed.stderr) == (0, "")
    assert f"{COMPLETE}" in printed.stdout
    assert LINE in printed.stdout
    data = as_json("completion", shell)["data"]
    assert data["shell"] == shell
    assert data["script"].split() == printed.stdout.split()


def test_powershell_gets_each_value_with_its_meaning(home: Path) -> None:
    # PowerShell itself is not run here: this is what its script reads.
    result = ask("config set llm.up", home, "powershell")
    assert result.stdout.splitlines() == [
        "words",
        "llm.update_check\twhether serve looks for an update once a day, and reports it",
    ]


# --- bad surroundings --------------------------------------------------------------------


def test_nothing_is_written_and_no_folder_is_made(tmp_path: Path) -> None:
    home = tmp_path / "none"
    for words in ("install --release b", "stop ", "use ", "config set llm.backend c", "run l"):
        assert ask(words, home).code == 0
    assert not home.exists()


@pytest.mark.parametrize("tsuku_home", ["", "relative"])
def test_a_home_that_is_none_leaves_commands_and_backends(tsuku_home: str, home: Path) -> None:
    for words, value in {"insta": "install", "install --backend vul": "vulkan"}.items():
        result = ask(words, home, TSUKU_HOME=tsuku_home)
        assert result.code == 0, result
        assert result.stderr == ""
        assert value in result.stdout.splitlines()


def test_broken_files_cost_only_their_own_values(home: Path, complete: Complete) -> None:
    (home / "config.toml").write_bytes(b"\xff[")
    (version,) = (home / "llm" / "versions").iterdir()
    (version / "receipt.json").write_bytes(b"{")
    (home / "llm" / "state" / "servers" / "big.json").write_bytes(b"\x00")
    (home / "llm" / "active.json").write_bytes(b"[]")
    assert complete("stop b") == ["big"]
    assert complete("use b") == []
    assert complete("run l") == []
    assert complete("install --channel stab") == ["stable"]
    assert complete("insta") == ["install"]


@pytest.mark.parametrize(
    "changes",
    [
        {LINE: ""},
        {REPLACED: "x"},
        {REPLACED: "\udcff"},
        {LINE: "tsuku-llm 'open"},
        {COMPLETE: "tcsh"},
        {COMPLETE: ""},
        {LINE: "tsuku-llm \udcff"},
        {LINE: "tsuku-llm install --hardware /none --release "},
        {LINE: "tsuku-llm --version "},
        {LINE: "tsuku-llm repository add x y --root /none "},
    ],
    ids=str,
)
def test_a_strange_question_is_answered_without_an_error(
    changes: dict[str, str], home: Path
) -> None:
    result = ask("install --", home, **changes)
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"signed": 3}', b"\xff"])
def test_damaged_metadata_offers_what_is_left(
    content: bytes, home: Path, complete: Complete
) -> None:
    folder = home / "llm" / "metadata" / "official"
    copy = folder / "copies" / ("a" * 64) / "metadata"
    copy.mkdir(parents=True)
    (folder / "current").write_text("a" * 64)
    (copy / "timestamp.json").write_bytes(content)
    assert complete("install --release b1142") == ["b11429"]
    assert complete("install --repository other --release b1142") == []
    assert complete("install --repository other --backend openv") == ["openvino"]


def test_a_name_with_a_line_break_is_not_offered(home: Path, complete: Complete) -> None:
    assert sys.platform == "win32" or complete("use ") != []
    for receipt in (home / "llm" / "versions").glob("*/receipt.json"):
        receipt.write_text(receipt.read_text().replace('"cpu"', '"c\\nx"'))
    assert "x" not in complete("uninstall ")
