"""Names that a shell would run, completed in real shells: they arrive as they are at Enter.

N07: a name is data. Each line is typed as a person does, completed with TAB, and then run with
another program first in it, which writes down the words that it got.
"""

import os
import re
import select
import shlex
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from support.model_shelves import ollama_model, small_model
from support.program import TIMEOUT, environment, run_program
from support.tools import open_terminal, require_tool

from tsuku_llm.cli import completion

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")

NAMES = (
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned;b",
    "a|touch pwned|b",
    "a&touch pwned&b",
    "a>pwned",
    "a<pwned",
    "it's",
    'say "hello".gguf',
    "'",
    '"$(touch pwned)".gguf',
    "'$(touch pwned)'",
    "two  words",
    " first blank",
    "~root",
    "star*",
    "q?[ab]",
    "{a,b}",
    "back\\slash",
    "\\$(touch pwned)",
    "bang!!x",
    "$HOME",
    "${x:=1}",
    "#hash",
    "=ls",
    "%1",
    "^a^b",
    "(touch pwned)",
    "a:b=c@d,e",
    "é ü 模型",
    "a\N{RIGHT SINGLE QUOTATION MARK};b",
)
IN_QUOTES = tuple(NAMES[at] for at in (0, 1, 7, 8, 9, 10, 11, 18, 20, 21, -2))
"""Those that differ within quotes."""

UNSEEN = (
    "line\nbreak",
    "\x1b]0;title\x07",
    "a\tb",
    "\u202egnp",
    "a\rb",
    "-rf",
    "--help=$(touch pwned)",
)
"""Those that no shell is offered."""

SETUP = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
    "fish": ("--no-config", "-i"),
}

ASK = """#!/bin/sh
{ for each in "$_TSUKU_LLM_COMPLETE" "$_TSUKU_LLM_LINE" "$_TSUKU_LLM_REPLACED" "$PWD"; do
    printf '%s\\037' "$each"
done; } >ASKED
cat ANSWERED
"""
"""The program as the shells find it: the test's own process runs it, which is much faster."""

TAKE = """#!/bin/sh
printf '%s\\037' "$@" >>TAKEN
"""


class Terminal:
    """Folders with a model each, and lines that are typed there in a shell."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "models"
        self.taken, self.asked, self.answered = (
            tmp_path / name for name in ("taken", "asked", "answered")
        )
        programs, self.home = tmp_path / "programs", tmp_path / "home"
        for folder in (self.folder, programs, self.home):
            folder.mkdir()
        for fifo in (self.asked, self.answered, self.taken):
            os.mkfifo(fifo)
        for name, text in {"tsuku-llm": ASK, "take": TAKE}.items():
            placed = text
            for word, path in vars(self).items():
                placed = placed.replace(word.upper(), shlex.quote(str(path)))
            (programs / name).write_text(placed)
            (programs / name).chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.env = environment(self.home, PATH=path, HOME=str(self.home), TERM="dumb")
        for name in ("EDITOR", "VISUAL"):
            self.env.pop(name, None)

    def place(self, number: int, *names: str) -> None:
        """Put models into a folder of their own; nothing else is there to be completed."""
        here = self.folder / str(number) / "here"
        here.mkdir(parents=True)
        for name in names:
            small_model(here.with_name("own") / f"{name}.gguf")

    def _answer(self) -> None:
        """Run the program for each question, until one is empty."""
        while words := self.asked.read_text("utf-8").split("\x1f"):
            if len(words) == 1:
                return
            shell, line, replaced, here = words[:4]
            asked = {"_TSUKU_LLM_COMPLETE": shell, "_TSUKU_LLM_LINE": line}
            asked |= {"_TSUKU_LLM_REPLACED": replaced}
            shelf = {"TSUKU_LLM_MODEL_PATH": str(Path(here).with_name("own"))}
            done = run_program(env={**self.env, **asked, **shelf}, cwd=Path(here))
            self.answered.write_text(done.stdout, "utf-8")

    def _listen(self, terminal: int) -> None:
        """Keep what the shell says: it would wait for a terminal that nobody reads."""
        with suppress(OSError):  # the shell has ended
            while part := os.read(terminal, 4096):
                self.said += part

    def type(self, shell: str, lines: Sequence[str]) -> list[list[str]]:
        """Type each line in its folder, up to TAB; return the words that it had at Enter."""
        script, self.said = self.home / "script", b""
        script.write_text(f"{BEFORE.get(shell, '')}{completion.script(shell)}", "utf-8")
        ours, theirs = open_terminal()
        for work in (self._answer, lambda: self._listen(ours)):
            threading.Thread(target=work, daemon=True).start()
        taken = os.open(self.taken, os.O_RDWR)
        found = []
        with subprocess.Popen(
            [require_tool("setsid"), "--ctty", "--wait", require_tool(shell), *SETUP[shell]],
            env=self.env,
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as child:
            os.close(theirs)
            os.write(ours, f". {script}\n".encode())
            for at, line in enumerate(lines):
                # Ctrl-A goes to the begin of the line.
                here = self.folder / str(at) / "here"
                os.write(ours, f"cd {here}\n{line}\t\x01take \n".encode())
                assert select.select([taken], [], [], TIMEOUT)[0], self.said
                found.append(os.read(taken, 4096).decode().split("\x1f")[:-1])
            os.write(ours, b"exit\n")
            assert child.wait(TIMEOUT) == 0, self.said
        os.close(taken)
        self.asked.write_text("")
        return found


BEFORE = {"zsh": "autoload -Uz compinit; compinit -D -u\n"}
"""What a shell needs before the script."""


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.mark.parametrize("shell", SETUP)
def test_N07_a_name_arrives_as_it_is_whatever_the_shell_would_do(
    shell: str, terminal: Terminal
) -> None:
    lines, expected = [], []
    for quote, names in {"": NAMES, "'": IN_QUOTES, '"': IN_QUOTES}.items():
        # fish has no way to say that a tilde is one.
        for name in (each for each in names if shell != "fish" or each != "~root"):
            terminal.place(len(lines), name)
            lines.append(f"tsuku-llm serve -m {quote}")
            expected.append(["tsuku-llm", "serve", "-m", name])
    assert terminal.type(shell, lines) == expected, terminal.said
    assert not list(terminal.folder.rglob("pwned"))


@pytest.mark.parametrize("shell", [*SETUP, "powershell"])
def test_N07_a_name_that_no_line_can_hold_is_not_offered(shell: str, terminal: Terminal) -> None:
    terminal.place(0, *UNSEEN, *(("~root",) if shell == "fish" else ()), "plain")
    shelf = terminal.folder / "0" / "own"
    asked = {completion.COMPLETE: shell, completion.LINE: "tsuku-llm serve -m "}
    asked |= {completion.REPLACED: "", "TSUKU_LLM_MODEL_PATH": str(shelf)}
    done = run_program(env={**terminal.env, **asked}, cwd=terminal.folder / "0" / "here")
    kind, *words = done.stdout.splitlines()
    assert (done.code, done.stderr, kind) == (0, "", "words")
    assert [re.split("[\t:]", word)[0] for word in words] == ["plain"]


# --- what bash is told, and what stays of a word that is typed in parts ---------------------


@pytest.mark.parametrize(
    ("line", "replaced", "inserted"),
    [
        ("serve -m my", "my", "'my model'"),
        ("serve -m my\\ m", "my\\ m", "'my model'"),
        ("serve -m 'my m", "my m", "'my model'"),
        ('serve -m "my m', "my m", '"my model"'),
        ("serve -m my' m", " m", "' model'"),
        ("serve --model=my", "my", "'my model'"),
        ("serve --model='my m", "my m", "'my model'"),
        ("serve -m qw:7", "7", "7b"),
        ("serve -m qw:'", "", "'7b'"),
        ('serve -m "qw:', "qw:", '"qw:7b"'),
        ("serve -m $(touch pwned", "pwned", None),
    ],
)
def test_N07_bash_gets_the_part_that_it_replaces_in_the_quotes_that_are_open(
    line: str, replaced: str, inserted: str | None, terminal: Terminal
) -> None:
    terminal.place(0, "my model")
    ollama_model(terminal.home / ".ollama" / "models", "qw:7b")
    asked = {completion.COMPLETE: "bash", completion.LINE: f"tsuku-llm {line}"}
    asked |= {completion.REPLACED: replaced, "TSUKU_LLM_MODEL_PATH": str(terminal.folder / "0")}
    done = run_program(env={**terminal.env, **asked}, cwd=terminal.folder / "0" / "here")
    assert done.stdout.splitlines() == (["words", inserted] if inserted else ["files"])
