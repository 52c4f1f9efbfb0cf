"""``serve --systemd-unit``: a unit that systemd itself accepts and reads as it was meant."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import Result, environment, run_program
from support.tools import require_tool

from tsuku_llm.cli.render.servers import unit_text as text
from tsuku_llm.operations.credentials import Handover, masked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

SERVER = ("-m", "my model.gguf", "--alias", '$5 "%h')
WORDS = ("serve", "--systemd-unit", "--name", "big", "--", *SERVER)
ODD = ["a b", "%h", "$HOME", 'q"q', "\\", "new\nline", "é", "'", ";", ""]


def printed(tmp_path: Path, *words: str, **extra: str) -> Result:
    return run_program(*words, env=environment(tmp_path, **extra), cwd=tmp_path)


def option(unit: str, name: str) -> str:
    return next(re.finditer(rf"^{name}=(.*)$", unit, re.MULTILINE))[1]


def verify(unit: str, folder: Path) -> str:
    """What systemd has to say against this unit; nothing is right."""
    file = folder / "tsuku-llm-test.service"
    file.write_text(unit, encoding="utf-8")
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    done = subprocess.run(
        [require_tool("systemd-analyze"), "verify", "--user", "--man=no", str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return "\n".join(line for line in done.stderr.splitlines() if file.name in line)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = printed(tmp_path, *WORDS)
    assert (done.code, done.stderr) == (0, "")
    assert verify(done.stdout, tmp_path) == ""


def test_systemd_refuses_a_unit_that_is_wrong(tmp_path: Path) -> None:
    unit = printed(tmp_path, *WORDS).stdout
    assert "restart" in verify(unit.replace("Restart=on-failure", "Restart=sometimes"), tmp_path)
    assert verify(re.sub("(?m)^ExecStart=", "ExecStart=/nothing", unit), tmp_path)


def test_the_unit_has_the_users_folder_and_settings(tmp_path: Path) -> None:
    unit = printed(tmp_path, *WORDS, TSUKU_LLM_BACKEND="vulkan", LLAMA_API_KEY="secret").stdout
    assert option(unit, "WorkingDirectory") == str(tmp_path)
    assert option(unit, "Type") == "exec"
    assert f"\nEnvironment=TSUKU_HOME={tmp_path}\nEnvironment=TSUKU_LLM_BACKEND=vulkan\n" in unit
    assert "secret" not in unit
    assert "tsuku-llm-big.service" in unit
    assert option(unit, "ExecStart").startswith(f"{sys.executable} -m tsuku_llm serve --name big")
    assert '--exec -- -m "my model.gguf" --alias "$$5 \\"%%h"' in option(unit, "ExecStart")


def test_the_exec_line_starts_the_server(tmp_path: Path) -> None:
    """With nothing installed it gets as far as saying so."""
    unit = printed(tmp_path, "serve", "--systemd-unit", "--", "-m", "x.gguf").stdout
    line = shlex.split(option(unit, "ExecStart"))
    done = subprocess.run(
        line, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0][:21]) == (7, "error[not-installed]:")


@pytest.mark.parametrize("word", ODD)
def test_unusual_arguments_survive_the_quoting(word: str, tmp_path: Path) -> None:
    """``cat-config`` of a unit cannot be asked here, so the quoting is undone by its rules."""
    unit = text("x", ["/bin/echo"], Handover((word,), {"TSUKU_HOME": word}, {}), tmp_path, None)
    assert verify(unit, tmp_path) == ""
    quoted = option(unit, "ExecStart").removeprefix("/bin/echo ")
    assert undone(quoted).replace("$$", "$") == word
    assert undone(option(unit, "Environment")) == f"TSUKU_HOME={word}"


def undone(quoted: str) -> str:
    """Quotes and escapes as systemd.syntax(7) has them, then specifiers."""
    if quoted.startswith('"'):
        quoted = re.sub(r'\\x(..)|\\(["\\])', unescaped, quoted[1:-1])
    return quoted.replace("%%", "%")


def unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


SECRETS = {
    "option": (("--api-key", "K3Y"), {}, {"LLAMA_API_KEY": "K3Y"}),
    "underscore": (("--api_key", "K3Y"), {}, {"LLAMA_API_KEY": "K3Y"}),
    "equals": (("--api-key=K3Y",), {}, {"LLAMA_API_KEY": "K3Y"}),
    "several": (("--api-key", "K3Y", "--api-key", "K3Y2"), {}, {"LLAMA_API_KEY": "K3Y,K3Y2"}),
    "variable": ((), {"LLAMA_API_KEY": "K3Y"}, {"LLAMA_API_KEY": "K3Y"}),
    "both": (("--api-key", "K3Y"), {"LLAMA_API_KEY": "K3Yold"}, {"LLAMA_API_KEY": "K3Y"}),
    "token": (("--hf-token", "K3Y"), {}, {"HF_TOKEN": "K3Y"}),
    "short_token": (("-hft", "K3Y"), {}, {"HF_TOKEN": "K3Y"}),
    "token_variable": ((), {"HF_TOKEN": "K3Y"}, {"HF_TOKEN": "K3Y"}),
    "unknown_token": (("--new-token", "K3Y"), {}, {"TSUKU_UNIT_WORD_3": "K3Y"}),
    "unknown_password": (("--proxy_password", "K3Y"), {}, {"TSUKU_UNIT_WORD_3": "K3Y"}),
    "url": (("-mu", "https://u:K3Y@h/m"), {}, {"TSUKU_UNIT_WORD_3": "https://u:K3Y@h/m"}),
    "mirror": (
        (),
        {"TSUKU_LLM_MIRROR": "https://u:K3Y@h/"},
        {"TSUKU_LLM_MIRROR": "https://u:K3Y@h/"},
    ),
    "odd": (("--api-key", "K3Y \"$HOME`%h\\'#;é"), {}, {"LLAMA_API_KEY": "K3Y \"$HOME`%h\\'#;é"}),
}


@pytest.mark.parametrize("way", SECRETS)
@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_T16_a_secret_is_in_a_file_of_its_owner_and_not_in_the_unit(
    way: str, mask: int, tmp_path: Path
) -> None:
    words, extra, expected = SECRETS[way]
    state = tmp_path / "llm" / "state"
    before = os.umask(mask)
    try:
        done = printed(tmp_path, "serve", "--systemd-unit", "--", "-m", "x.gguf", *words, **extra)
    finally:
        os.umask(before)
    assert done.code == 0, done.stderr
    assert "K3Y" not in done.stdout + done.stderr
    file = state / "credentials" / "default.env"
    assert option(done.stdout, "EnvironmentFile") == str(file)
    assert f"it loads {file}, which only you can read" in done.stderr
    assert (oct(file.stat().st_mode), oct(file.parent.stat().st_mode)) == ("0o100600", "0o40700")
    assert verify(done.stdout, tmp_path) == ""
    assert read_by_a_shell(file, expected) == expected
    for variable in expected:
        if variable.startswith("TSUKU_UNIT_WORD_"):
            assert option(done.stdout, "ExecStart").endswith(f" ${{{variable}}}")
    assert [path.name for path in file.parent.iterdir()] == ["default.env"]


def read_by_a_shell(file: Path, variables: dict[str, str]) -> dict[str, str]:
    """What a file of variables says: a shell undoes its quotes as systemd does."""
    shown = " ".join(f'"${name}"' for name in variables)
    done = subprocess.run(
        ["/bin/sh", "-c", f". '{file}'; printf '%s\\0' {shown}"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(variables, done.stdout.split("\0"), strict=False))


def test_T16_key_files_and_arguments_without_secrets_stay_in_the_unit(tmp_path: Path) -> None:
    words = ("--api-key-file", "keys.txt", "--ssl-key-file", "k.pem", "-mu", "https://h/m@v", "x@y")
    done = printed(tmp_path, "serve", "--systemd-unit", "--", *words)
    assert (done.code, done.stderr) == (0, "")
    assert option(done.stdout, "ExecStart").endswith(f" -- {' '.join(words)}")
    assert not (tmp_path / "llm").exists()


def test_T16_a_key_that_systemd_would_drop_is_refused(tmp_path: Path) -> None:
    done = printed(tmp_path, "serve", "--systemd-unit", "--", "--api-key", "K3Y\nX=1")
    assert (done.code, done.stdout) == (2, "")
    assert "LLAMA_API_KEY has a character that systemd does not pass on" in done.stderr
    assert "K3Y" not in done.stderr


def test_T16_another_key_replaces_the_file_and_the_json_says_where(tmp_path: Path) -> None:
    file = tmp_path / "llm" / "state" / "credentials" / "big.env"
    for key in ("K3Y", "0THER"):
        words = ("serve", "--systemd-unit", "--name", "big", "--json", "--", "--api-key", key)
        done = printed(tmp_path, *words)
        assert done.document["data"]["credentials"] == str(file)
        assert file.read_text("utf-8") == f'LLAMA_API_KEY="{key}"\n'
        assert key not in done.stdout + done.stderr


def test_T16_a_dry_run_masks_keys_and_shows_other_arguments() -> None:
    words = ("-m", "x", "", "--api_key", "K3Y", "https://u:K3Y@h/", "--hf-token=K3Y", "--api-key")
    shown = ("-m", "x", "", "--api-key", "***", "***", "--hf-token", "***", "--api-key")
    assert masked(words) == shown


def test_two_ways_to_serve_are_refused(tmp_path: Path) -> None:
    done = printed(tmp_path, "serve", "--systemd-unit", "--detach")
    assert done.code == 2
    assert "cannot be combined" in done.stderr
    assert printed(tmp_path, "serve", "--systemd-unit", "--name", "A/B").code == 2


def test_the_json_has_the_text_of_the_unit(tmp_path: Path) -> None:
    done = printed(tmp_path, "serve", "--systemd-unit", "--json", "--", "-m", "x.gguf")
    assert done.document["data"]["unit"].startswith("# Made by: tsuku-llm serve --systemd-unit\n")
    assert "--json" not in option(done.document["data"]["unit"], "ExecStart")
