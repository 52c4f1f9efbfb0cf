"""With streams of any kind there is one answer and no traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import COMMAND, environment, run_program

from tsuku_llm.cli.terminal.streams import reserved_stdout, say
from tsuku_llm.ground.safe_text import printable

posix = pytest.mark.skipif(os.name != "posix", reason="descriptors and devices of POSIX")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NVIDIA H200 ü 漢", "NVIDIA H200 ü 漢"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\u202eevil", "\\u202eevil"),
        ("\udcff", "\\udcff"),
        ("\x9b", "\\x9b"),
    ],
)
def test_no_text_controls_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_printable_text_is_unchanged(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_a_closed_stream_is_not_an_error() -> None:
    say(None, "x")


def test_stdout_is_kept_for_the_document(capfd: pytest.CaptureFixture[str]) -> None:
    with reserved_stdout() as document:
        sys.stdout.write("from Python\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        say(document, "document\n")
    sys.stdout.write("after\n")
    out, err = capfd.readouterr()
    assert out == "document\nafter\n"
    assert set(err.splitlines()) == {"from Python", "from a child"}


def shell(line: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("PROGRAM", " ".join(COMMAND))],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@posix
@pytest.mark.parametrize("arguments", ["--help", "--version", "config list", "config list --json"])
def test_a_closed_pipe_is_not_an_error(arguments: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = [*COMMAND, *arguments.split()]
    with open(writer, "wb") as stdout:  # noqa: PTH123 - a descriptor
        done = subprocess.run(
            line, env=environment(tmp_path), stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


@posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", ["--help", "--version", "config list", "config list --json"])
def test_an_output_error_is_reported(arguments: str, tmp_path: Path) -> None:
    done = shell(f"PROGRAM {arguments} > /dev/full", tmp_path)
    assert done.returncode == 6
    assert done.stderr.startswith("error[store]: the output cannot be written\n")
    assert "Traceback" not in done.stderr


@posix
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("PROGRAM config list >&-", 0),
        ("PROGRAM config list --json >&-", 0),
        ("PROGRAM config frob 2>&-", 2),
        ("PROGRAM config frob --json 2>&-", 2),
        ("PROGRAM config frob 2>/dev/full", 2),
        ("PROGRAM config list --json >&- 2>&- <&-", 0),
    ],
)
def test_closed_streams_do_not_change_the_exit_code(line: str, code: int, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@posix
def test_a_path_is_printed_byte_by_byte(tmp_path: Path) -> None:
    home = os.fsencode(tmp_path) + b"/\xff home"
    env = {**environment(tmp_path), "TSUKU_HOME": os.fsdecode(home), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [*COMMAND, "config", "path"], env=env, capture_output=True, timeout=600, check=True
    )
    assert done.stdout == home + b"/config.toml\n"


@posix
def test_a_narrow_encoding_is_not_an_error(tmp_path: Path) -> None:
    home = tmp_path / "漢"
    env = {**environment(home), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [*COMMAND, "config", "set", "llm.channel", "nightly"],
        env=env,
        capture_output=True,
        timeout=600,
        check=True,
    )
    assert b"\\u6f22" in done.stdout


STRICT = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOCALES = {
    "C": {"LC_ALL": "C"},
    "C without UTF-8": {"LC_ALL": "C", **STRICT},
    "an unknown one": {"LC_ALL": "xx_YY.UTF-8", **STRICT},
    "ISO-8859-1": {"LC_ALL": "de_DE.ISO-8859-1", **STRICT},
    "a stream of ISO-8859-1": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "iso-8859-1"},
}


@pytest.fixture
def locales(tmp_path: Path) -> Path:
    """A folder with the locale de_DE.ISO-8859-1, which a bare system lacks, if it can be made."""
    folder = tmp_path / "locales"
    folder.mkdir()
    made = folder / "de_DE.ISO-8859-1"
    # The package locales has its sources, and no test asks for it.
    if shutil.which("localedef") and Path("/usr/share/i18n/locales/de_DE").exists():
        line = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", "--no-archive", str(made)]
        subprocess.run(line, check=False, capture_output=True)
    return folder


@posix
@pytest.mark.parametrize("name", LOCALES)
def test_no_locale_changes_an_answer_or_an_exit_code(
    name: str, locales: Path, tmp_path: Path
) -> None:
    env = {**environment(tmp_path / "home"), "LOCPATH": str(locales), **LOCALES[name]}
    env = {key: value for key, value in env.items() if key != "LC_CTYPE"}

    def run(*words: str | bytes) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run([*COMMAND, *words], env=env, capture_output=True, check=False)

    usual = run_program("backends", env=environment(tmp_path / "home"))
    listed = run("backends")
    assert (listed.returncode, listed.stdout.decode("ascii")) == (usual.code, usual.stdout)
    missing = run("serve", "-m", "größe.gguf".encode())
    assert missing.returncode == 7
    assert missing.stderr.startswith(b"error[bad-model]: the model cannot be read")
    # An ö is shown, or escaped; it is never left out, and never an error of ours.
    forms = ("ö".encode(), "ö".encode("latin-1"), b"\\udcc3\\udcb6")
    assert any(b"gr" + form in missing.stderr for form in forms)
    assert b"Traceback" not in missing.stderr
