"""``config edit``: a copy in the user's editor, checked before it is saved, and never lost."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.program import COMMAND, Result, environment, run_on_terminal, run_program

pytestmark = pytest.mark.skipif(os.name != "posix", reason="editors that are scripts")

AsJson = Callable[..., Any]
Edit = Callable[..., Result]


@pytest.fixture
def env(tsuku_home: Path, tmp_path: Path) -> dict[str, str]:
    """An environment whose temporary files lie in a folder of the test."""
    tsuku_home.mkdir()
    temporary = tmp_path / "copies"
    temporary.mkdir()
    env = environment(tsuku_home, TMPDIR=str(temporary))
    env.pop("VISUAL", None)
    return env


@pytest.fixture
def edit(env: dict[str, str], tmp_path: Path) -> Edit:
    """Run ``config edit``; the editor is Python code that gets the copy as ``path``."""

    def start(code: str, *words: str, variable: str = "EDITOR", run: Any = run_program) -> Any:
        env[variable] = editor(tmp_path, code)
        return run("config", "edit", *words, env=env)

    return start


def editor(folder: Path, code: str) -> str:
    script = folder / "an editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n{code}\n")
    return f"'{sys.executable}' '{script}'"


def copies(env: dict[str, str]) -> list[Path]:
    return list(Path(env["TMPDIR"]).glob("*/*"))


def kept(env: dict[str, str], stderr: str) -> str:
    """The user's text, at the path that was told."""
    (copy,) = copies(env)
    assert f"your text was not saved; it is kept: {copy}" in stderr
    return copy.read_text()


def test_a_right_text_is_saved_with_comments_mode_and_link(
    edit: Edit, env: dict[str, str], tsuku_home: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles" / "tsuku.toml"
    target.parent.mkdir()
    target.write_text("# mine\n[llm]\nbackend = 'cpu' # why\n[other]\nx = 1\n")
    target.chmod(0o640)
    (tsuku_home / "config.toml").symlink_to(target)
    done = edit("path.write_text(path.read_text().replace('cpu', 'vulkan'))")
    assert (done.code, done.stdout) == (0, f"saved {tsuku_home / 'config.toml'}\n"), done.stderr
    assert target.read_text() == "# mine\n[llm]\nbackend = 'vulkan' # why\n[other]\nx = 1\n"
    assert (tsuku_home / "config.toml").is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert not copies(env)


def test_visual_comes_before_editor_and_others_cannot_read_the_copy(
    edit: Edit, env: dict[str, str]
) -> None:
    env["EDITOR"] = "false"
    done = edit("sys.exit(path.parent.stat().st_mode & 0o77)", variable="VISUAL")
    assert (done.code, done.stdout) == (0, "nothing was changed\n"), done.stderr


def test_without_a_file_the_editor_shows_where_to_begin(edit: Edit, tsuku_home: Path) -> None:
    assert edit("").stdout == "nothing was changed\n"
    assert not (tsuku_home / "config.toml").exists()
    edit("path.write_text(path.read_text() + 'canary = false\\n')")
    assert (tsuku_home / "config.toml").read_text().endswith("[llm]\ncanary = false\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[llm]\ncanary = maybe\n", "line 2"),
        ("[llm]\ncanary = 'mabe'\n", "line 2: 'mabe'"),
        ("[llm]\nchannel = 'stabel'\n", "there is no channel 'stabel'"),
        ("[llm]\nrepository = 'mine'\n", "there is no repository 'mine'"),
        ("[llm]\nbackend = ''\n", "llm.backend must not be empty"),
        ("llm = 1\n", "llm is not a table"),
        ("#" * (1 << 20) + "\n", "larger than"),
    ],
    ids=["toml", "value", "channel", "repository", "empty", "table", "large"],
)
def test_a_wrong_text_is_not_saved_and_not_lost(
    text: str, told: str, edit: Edit, env: dict[str, str], tsuku_home: Path
) -> None:
    (tsuku_home / "config.toml").write_text("[llm]\n# old\n")
    done = edit(f"path.write_text({text!r})")
    assert (done.code, done.stdout) == (2, "")
    assert told in done.stderr
    assert "error[bad-config]: the settings are wrong, and nothing was saved" in done.stderr
    assert kept(env, done.stderr) == text
    assert (tsuku_home / "config.toml").read_text() == "[llm]\n# old\n"


def test_what_was_wrong_before_keeps_no_other_change_from_being_saved(
    edit: Edit, tsuku_home: Path
) -> None:
    file = tsuku_home / "config.toml"
    file.write_text("[llm]\nbackend = 3\nchannel = 'nope'\n")
    done = edit("path.write_text(path.read_text() + 'canary = false\\n')")
    assert done.code == 0, done.stderr
    assert file.read_text() == "[llm]\nbackend = 3\nchannel = 'nope'\ncanary = false\n"
    assert "warning: llm.backend must be" in done.stderr
    assert "warning: there is no channel 'nope'" in done.stderr


def test_a_broken_file_is_mended(edit: Edit, tsuku_home: Path) -> None:
    file = tsuku_home / "config.toml"
    file.write_bytes(b"[llm\n# gr\xfc\xdfe\n")
    done = edit("path.write_bytes(path.read_bytes().replace(b'[llm', b'[llm]'))")
    assert (done.code, "line 2 is not UTF-8" in done.stderr) == (2, True)
    done = edit("path.write_bytes(b'[llm]\\ncanary = false\\n')")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("change", ["", "path.write_text('[llm]\\ncanary = false\\n')\n"])
def test_an_editor_that_fails_saves_nothing_and_loses_nothing(
    change: str, edit: Edit, env: dict[str, str], tsuku_home: Path
) -> None:
    done = edit(f"{change}sys.exit(3)")
    assert (done.code, done.stdout) == (2, "")
    assert "error[bad-usage]: the editor failed" in done.stderr
    assert not (tsuku_home / "config.toml").exists()
    if change:
        assert kept(env, done.stderr) == "[llm]\ncanary = false\n"
    else:
        assert not copies(env)


def test_an_editor_that_is_killed_loses_nothing_of_its_own(edit: Edit, env: dict[str, str]) -> None:
    """What it had not written into the copy may be in a file beside it."""
    done = edit(
        "import os, signal\n"
        "path.with_name('.config.toml.swp').write_text('half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert done.code == 2
    assert "it is kept" in done.stderr
    assert [path.read_text() for path in copies(env) if path.suffix == ".swp"] == ["half"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_editor_runs_loses_nothing(
    number: signal.Signals, env: dict[str, str], tmp_path: Path, tsuku_home: Path
) -> None:
    env["EDITOR"] = editor(
        tmp_path,
        "import os, signal\npath.write_text('[llm]\\n# work\\n')\nprint('ready', flush=True)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsys.stdin.read()",
    )
    with subprocess.Popen(
        [*COMMAND, "config", "edit"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        code = child.wait()
        child.stdin.close()  # the editor ends
        assert child.stderr is not None
        stderr = child.stderr.read()
    assert code == 128 + number
    assert kept(env, stderr) == "[llm]\n# work\n"
    assert not (tsuku_home / "config.toml").exists()


@pytest.mark.parametrize("name", ["/nowhere/editor", "'open", ""])
def test_an_editor_that_cannot_be_started_is_named(name: str, env: dict[str, str]) -> None:
    done = run_program("config", "edit", env={**env, "EDITOR": name})
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "hint: name an editor: EDITOR=nano tsuku-llm config edit"
    assert "Traceback" not in done.stderr
    assert not copies(env)


def test_a_copy_that_the_editor_removes_changes_nothing(edit: Edit, tsuku_home: Path) -> None:
    (tsuku_home / "config.toml").write_text("[llm]\n")
    done = edit("path.unlink()")
    assert done.code == 2
    assert "nothing was saved" in done.stderr
    assert (tsuku_home / "config.toml").read_text() == "[llm]\n"


def test_a_change_meanwhile_is_not_overwritten(
    edit: Edit, env: dict[str, str], tsuku_home: Path
) -> None:
    file = tsuku_home / "config.toml"
    file.write_text("[llm]\n")
    done = edit(
        f"path.write_text('[llm]\\ncanary = false\\n')\n"
        f"pathlib.Path({str(file)!r}).write_text('[llm]\\nmin_age = 3\\n')"
    )
    assert done.code == 2
    assert "was changed meanwhile" in done.stderr
    assert kept(env, done.stderr) == "[llm]\ncanary = false\n"
    assert file.read_text() == "[llm]\nmin_age = 3\n"


def test_on_a_terminal_a_wrong_text_is_edited_again(
    env: dict[str, str], tmp_path: Path, tsuku_home: Path
) -> None:
    """The second time, the editor finds what it had written the first time."""
    env["EDITOR"] = editor(
        tmp_path,
        "text = path.read_text()\n"
        "path.write_text(text.replace('perhaps', 'false') if 'perhaps' in text "
        "else '[llm]\\ncanary = perhaps\\n')",
    )
    code, said = run_on_terminal(b"y\n", "config", "edit", env=env)
    assert code == 0, said
    assert "This cannot be saved. Edit it again?" in said
    assert "line 2" in said
    assert (tsuku_home / "config.toml").read_text() == "[llm]\ncanary = false\n"
    assert not copies(env)
    code, said = run_on_terminal(
        b"n\n", "config", "edit", env={**env, "EDITOR": editor(tmp_path, "path.write_text('[')")}
    )
    assert code == 2
    assert [copy.read_text() for copy in copies(env)] == ["["]


def test_a_full_disk_or_a_closed_folder_keeps_the_text(
    edit: Edit, env: dict[str, str], tsuku_home: Path
) -> None:
    """The folder becomes a file while the editor is open."""
    done = edit(
        f"path.write_text('[llm]\\ncanary = false\\n')\n"
        f"home = pathlib.Path({str(tsuku_home)!r})\nhome.rmdir()\nhome.write_text('')"
    )
    assert done.code in (2, 6), done.stderr
    assert "Traceback" not in done.stderr
    assert kept(env, done.stderr) == "[llm]\ncanary = false\n"


def test_programs_get_a_document(edit: Edit, tsuku_home: Path) -> None:
    done = edit("print('said')\npath.write_text('[llm]\\ncanary = false\\n')", "--json")
    assert done.document["data"] == {
        "config_file": str(tsuku_home / "config.toml"),
        "changed": True,
    }
    assert re.search(r"^said$", done.stderr, re.MULTILINE)
