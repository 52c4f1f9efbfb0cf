"""The suite runs in any terminal: no test takes it, so nothing stops the suite (SIGTTIN)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tools import open_terminal, require_tool

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")

SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # this plays the shell, which gives the terminal away
child = os.fork()
if not child:
    os.setpgid(0, 0)
    if sys.argv[1] == "foreground":
        os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[2:]])
_, status = os.waitpid(child, os.WUNTRACED)
has = os.tcgetpgrp(0)
if os.WIFSTOPPED(status):
    os.killpg(child, signal.SIGKILL)
    sys.exit(f"stopped by signal {os.WSTOPSIG(status)}")
if has != (child if sys.argv[1] == "foreground" else os.getpgrp()):
    sys.exit(f"the terminal is {has}'s")
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""What a user's shell does: it starts pytest as a job, and looks whether the job is stopped."""

WAYS = {
    "bash": "bash -i -c :",
    "dash": "sh -i -c :",
    "zsh": "zsh -i -c :",
    "fish": "fish -i -c true",
    "job control": "bash -c 'set -m; sleep 0 & wait'",
    "a shell in the background": "bash -c 'bash -i -c : & wait'",
    "the terminal's settings": "! stty -a </dev/tty",
    "a question, as ssh and sudo ask it": "! sh -c ': </dev/tty'",
    "words for the terminal": "! sh -c 'echo word >/dev/tty'",
    "python": "python3 -c 'import os, sys; sys.exit(os.path.exists(os.ctermid()) is False)'",
    "another terminal": "script -qec 'bash -i -c :' /dev/null",
}


def run_in_terminal(ground: str, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run pytest as a job of a terminal's shell, in the foreground or in the background."""
    ours, theirs = open_terminal()
    try:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                SHELL,
                ground,
                "-n",
                "0",
                "-q",
                "-p",
                "no:cacheprovider",
                *words,
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"},
            stdin=theirs,
            capture_output=True,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("ground", ["foreground", "background"])
def test_no_test_can_take_the_terminal(ground: str, tmp_path: Path) -> None:
    for shell in ("zsh", "fish"):
        require_tool(shell)
    test = tmp_path / "test_taking.py"
    test.write_text(
        "import subprocess\n\nimport pytest\n\n"
        f"@pytest.mark.parametrize('way', {WAYS!r}.values())\n"
        "def test_takes_it(way):\n"
        "    subprocess.run(['bash', '-c', way], check=True)\n"
    )
    # The plugin is tests/conftest.py: it applies to every test of the suite.
    done = run_in_terminal(ground, "-v", "-p", "conftest", "--rootdir", tmp_path, test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_that_start_interactive_shells_leave_the_terminal() -> None:
    done = run_in_terminal(
        "background",
        "tests/project/test_install_script.py",
        "tests/cli/test_completion.py",
        "-k",
        "bash or another_folder",
    )
    assert done.returncode == 0, done.stdout + done.stderr
