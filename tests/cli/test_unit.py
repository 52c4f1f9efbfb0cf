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

from tsuku_llm.cli.render.unit import text

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


def test_it_serves_in_the_user_s_folder_with_the_user_s_settings(tmp_path: Path) -> None:
    unit = printed(tmp_path, *WORDS, TSUKU_LLM_BACKEND="vulkan", LLAMA_API_KEY="secret").stdout
    assert option(unit, "WorkingDirectory") == str(tmp_path)
    assert option(unit, "Type") == "exec"
    assert f"\nEnvironment=TSUKU_HOME={tmp_path}\nEnvironment=TSUKU_LLM_BACKEND=vulkan\n" in unit
    assert "secret" not in unit
    assert "tsuku-llm-big.service" in unit
    assert option(unit, "ExecStart").startswith(f"{sys.executable} -m tsuku_llm serve --name big")
    assert '--exec -- -m "my model.gguf" --alias "$$5 \\"%%h"' in option(unit, "ExecStart")


def test_the_line_starts_the_server(tmp_path: Path) -> None:
    """With nothing installed it gets as far as saying so."""
    unit = printed(tmp_path, "serve", "--systemd-unit", "--", "-m", "x.gguf").stdout
    line = shlex.split(option(unit, "ExecStart"))
    done = subprocess.run(
        line, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0][:21]) == (7, "error[not-installed]:")


@pytest.mark.parametrize("word", ODD)
def test_odd_words_stay_what_they_are(word: str, tmp_path: Path) -> None:
    """``cat-config`` of a unit cannot be asked here, so the quoting is undone by its rules."""
    unit = text("x", ["/bin/echo", word], tmp_path, {"TSUKU_HOME": word})
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


def test_two_ways_to_serve_are_refused(tmp_path: Path) -> None:
    done = printed(tmp_path, "serve", "--systemd-unit", "--detach")
    assert done.code == 2
    assert "exclude each other" in done.stderr
    assert printed(tmp_path, "serve", "--systemd-unit", "--name", "A/B").code == 2


def test_programs_get_the_text_in_the_envelope(tmp_path: Path) -> None:
    done = printed(tmp_path, "serve", "--systemd-unit", "--json", "--", "-m", "x.gguf")
    assert done.document["data"]["unit"].startswith("# Made by: tsuku-llm serve --systemd-unit\n")
    assert "--json" not in option(done.document["data"]["unit"], "ExecStart")
