"""Help in every form, and what a mistyped command or option is answered with."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from support.program import Result, environment, run_on_terminal, run_program
from support.tools import require_tool

from ci.reference.commands import contexts, help_of
from ci.reference.man_page import escaped
from tsuku_llm._version import REPORTS, __version__
from tsuku_llm.cli.habits import SAME_COMMANDS, SAME_OPTIONS
from tsuku_llm.cli.program import program as group
from tsuku_llm.cli.table import COMMANDS
from tsuku_llm.steps.program.copy_facts import own_updater

Run = Callable[..., Result]
AsJson = Callable[..., Any]

PAGE = Path(__file__).parents[2] / "docs/man/tsuku-llm.1"
PATHS = [each.command_path.split()[1:] for each in contexts(group, 80)]


# --- help and version as commands --------------------------------------------------------


@pytest.mark.parametrize("words", PATHS, ids=" ".join)
def test_help_of_a_command_is_its_help_option(words: list[str], program: Run) -> None:
    shown = program("help", *words)
    assert shown.code == 0
    assert shown == program(*words, "--help") == program(*words, "-h")


def test_help_as_json(as_json: AsJson) -> None:
    told = as_json("help", "config", "set")
    assert (told["status"], told["command"]) == ("ok", "help")
    assert told["data"]["help"].startswith("Usage: tsuku-llm config set ")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("instal",), "there is no command 'instal'", "did you mean: tsuku-llm install"),
        (("config", "lst"), "there is no command 'lst'", "did you mean: tsuku-llm config list"),
        (("serve", "x"), "tsuku-llm serve has no command 'x'", "see: tsuku-llm serve --help"),
        (("--", "--frob"), "tsuku-llm has no option --frob", "see: tsuku-llm --help"),
    ],
)
def test_help_of_what_does_not_exist(
    words: tuple[str, ...], message: str, hint: str, program: Run
) -> None:
    result = program("help", *words)
    assert result == Result(2, "", f"error[bad-usage]: {message}\nhint: {hint}\n")


def test_the_version_is_a_command(program: Run, as_json: AsJson) -> None:
    shown = f"tsuku-llm {__version__}\n{own_updater().text}\n"
    assert program("version") == Result(0, shown, "")
    assert as_json("version")["data"] == {"version": __version__, "way": own_updater().way}
    # Scripts ask with the option, and get one line.
    assert program("--version").stdout == shown.splitlines(keepends=True)[0]


def test_a_terminal_also_shows_how_this_copy_was_installed(tmp_path: Path) -> None:
    for words in (("--version",), ("-q", "--version")):
        code, shown = run_on_terminal(b"", *words, env=environment(tmp_path))
        assert (code, shown.splitlines()) == (0, [f"tsuku-llm {__version__}", own_updater().text])


# --- the texts ---------------------------------------------------------------------------


def test_the_tests_children_learn_no_width_from_their_environment() -> None:
    code = "import os; print({'COLUMNS', 'LINES'} & {*os.environ})"
    # Without ``env``: what this process has, also what os.environ does not show.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_help_is_wrapped_between_words(columns: int) -> None:
    words = {word for each in contexts(group, 500) for word in each.get_help().split()}
    for each in contexts(group, columns):
        for line in each.get_help().splitlines():
            # An address that is cut cannot be followed.
            assert len(line) <= columns or line.strip() == REPORTS, line
            assert line == line.rstrip()
            assert set(line.split()) <= words, f"cut in mid-word: {line}"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_shows_the_help_in_its_width(columns: int, tmp_path: Path) -> None:
    shown = run_program("serve", "--help", env={**environment(tmp_path), "COLUMNS": str(columns)})
    (made,) = [each for each in contexts(group, columns) if each.info_name == "serve"]
    assert shown.stdout.rstrip() == help_of(made)


def test_every_example_is_a_call_with_its_meaning() -> None:
    # tests/project/test_docs.py checks the words of each call.
    shown = [each for each in contexts(group, 80) if getattr(each.command, "examples", {})]
    assert {"serve", "install", "update", "doctor"} <= {each.info_name for each in shown}
    for each in shown:
        examples: dict[str, str] = each.command.examples  # type: ignore[attr-defined]
        for call, meaning in examples.items():
            assert "tsuku-llm " in call
            assert meaning.endswith((".", "?"))


def test_man_shows_every_command_and_option_without_a_warning() -> None:
    shown = subprocess.run(
        [require_tool("man"), "-l", "--warnings", PAGE],
        env={**os.environ, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MANROFFOPT": "-c"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    # man prints bold as a character over itself.
    words = set(re.sub(r".\x08", "", shown.stdout).replace(",", " ").split())
    for each in contexts(group, 80):
        assert set(each.command_path.split()) <= words
        for option in each.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert set(option.opts) <= words, option.opts


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        ("--a-b", "\\-\\-a\\-b"),
        (".x", "\\&.x"),
        ("'x", "\\&'x"),
        ("a\\b", "a\\eb"),
        ('"', "\\(dq"),
    ],
)
def test_a_text_is_no_instruction_to_man(text: str, roff: str) -> None:
    assert escaped(text) == roff


# --- did you mean ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("instal", "install"),
        ("Install", "install"),
        ("stauts", "status"),
        ("upgrade", "update"),
        ("upgrad", "update"),
        ("remove", "uninstall"),
        ("rm", "uninstall"),
        ("run-server", "serve"),
        ("set", "config set"),
        ("refresh", "repository refresh"),
        ("config rm", "config unset"),
        ("config show", "config list"),
        ("repository rm", "repository remove"),
        ("repository sync", "repository refresh"),
    ],
)
def test_a_command_of_another_name_is_suggested(typed: str, meant: str, program: Run) -> None:
    result = program(*typed.split())
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == f"hint: did you mean: tsuku-llm {meant}"


@pytest.mark.parametrize("typed", ["xyz", "frobnicate", "q", ""])
def test_a_command_that_is_like_none_gets_the_help(typed: str, program: Run) -> None:
    assert program(typed).stderr.splitlines()[-1] == "hint: see: tsuku-llm --help"


AFTER = "put arguments that are not for tsuku-llm after --: tsuku-llm serve"
SERVER = f"{AFTER} -m qwen2.5:7b -- -c 8192"


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("install --offlin", ["hint: did you mean --offline?"]),
        ("install -y", ["hint: did you mean --yes?"]),
        ("install --version b1", ["hint: did you mean --release?"]),
        ("install --variant cpu", ["hint: did you mean --backend?"]),
        (
            "install --require-gpu",
            [
                "  tsuku-llm serve has it",
                *(f"  tsuku-llm service {way} has it" for way in ("launchd", "systemd", "windows")),
                "hint: see: tsuku-llm install --help",
            ],
        ),
        (
            "repository list --fingerprint x",
            ["  tsuku-llm install has it", "  tsuku-llm repository add has it"],
        ),
        ("list -x", ["hint: see: tsuku-llm list --help"]),
        ("serve --requir-gpu", [f"hint: did you mean --require-gpu? {SERVER}"]),
        (
            "serve --force",
            [
                "  tsuku-llm install has it",
                "  tsuku-llm bundle create has it",
                "hint: see: tsuku-llm serve --help",
            ],
        ),
    ],
)
def test_an_unknown_option_is_answered_with_what_may_be_meant(
    typed: str, lines: list[str], program: Run
) -> None:
    result = program(*typed.split())
    assert (result.code, result.stdout) == (2, "")
    first, *rest = result.stderr.splitlines()
    assert " has no option -" in first
    assert rest[: len(lines)] == lines


def test_quiet_of_serve_is_not_taken_for_require_gpu(program: Run) -> None:
    assert "--require-gpu" not in program("serve", "--quit").stderr


def test_a_hidden_option_is_not_suggested(program: Run) -> None:
    assert "did you mean" not in program("serve", "--supervise").stderr


def test_each_word_of_the_tables_leads_somewhere() -> None:
    subcommands = {words[-1] for words in PATHS if words}
    own = {line.split()[0] for line in SAME_COMMANDS}
    assert own <= subcommands
    # A word that is a command itself means that command.
    for line in SAME_COMMANDS:
        assert line.split()[0] not in line.split()[1:]
    options = {
        name
        for each in contexts(group, 80)
        for option in each.command.params
        for name in option.opts
    }
    assert {line.split()[0] for line in SAME_OPTIONS} <= options
    assert set(COMMANDS) <= subcommands
