"""Colours, wrapped lines, --quiet and --verbose: the rules, and the program in real terminals."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import COMMAND, Result, environment, run_program
from support.screens import screen

from tsuku_llm.cli.entry import run
from tsuku_llm.cli.program import wanted_color
from tsuku_llm.cli.services.command_line import serve_again
from tsuku_llm.cli.terminal.answer import CommandResult, details
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.style import Style, columns, painted, wants_color, wrapped
from tsuku_llm.cli.terminal.text import table

Run = Callable[..., Result]
MACHINE = Path(__file__).parents[1] / "snapshots" / "a100-driver-550-without-vulkan.json"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


# --- colours: the rule -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("color", "environ", "on_terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "0"}, False, False),
        ("auto", {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, True, False),
        ("auto", {"CLICOLOR": "0"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"CLICOLOR_FORCE": "1"}, True, False),
    ],
)
def test_who_decides_about_colours(
    color: str, environ: Mapping[str, str], on_terminal: bool, wanted: bool
) -> None:
    assert wants_color(color, environ, on_terminal=on_terminal) is wanted


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("error[not-found]: it is gone", "\x1b[1;31merror[not-found]:\x1b[0m it is gone"),
        ("warning: old", "\x1b[1;33mwarning:\x1b[0m old"),
        ("hint: run it", "\x1b[1mhint:\x1b[0m run it"),
        ("Options:", "\x1b[1mOptions:\x1b[0m"),
        ("not taken:", "\x1b[1mnot taken:\x1b[0m"),
        ("Usage: tsuku-llm list", "\x1b[1mUsage:\x1b[0m tsuku-llm list"),
        ("  fact: no mark", "  fact: no mark"),
        ("installed: cpu", "installed: cpu"),
    ],
)
def test_marks_and_headings_have_colours(line: str, shown: str) -> None:
    assert painted(line) == shown


@pytest.mark.parametrize(
    ("argv", "color"),
    [
        (["list"], "auto"),
        (["--color", "never", "list"], "never"),
        (["list", "--color=always"], "always"),
        (["list", "--frob", "--color", "always"], "always"),
        (["list", "--color", "blue"], "auto"),
        (["list", "--color"], "auto"),
        (["serve", "--", "--color", "always"], "auto"),
    ],
)
def test_the_option_counts_also_where_the_rest_is_wrong(argv: list[str], color: str) -> None:
    assert wanted_color(argv) == color


# --- wrapped lines: the rule -------------------------------------------------------------


def test_a_long_line_is_wrapped_between_words_with_a_hanging_indent() -> None:
    assert wrapped("  fix: take another build, or a newer one of the system", 24).splitlines() == [
        "  fix: take another",
        "    build, or a newer",
        "    one of the system",
    ]


@pytest.mark.parametrize(
    "whole",
    [
        "tsuku-llm serve -- -hf OWNER/REPOSITORY",
        "tsuku-llm config set llm.backend cuda",
        "/home/user/.local/bin/tsuku-llm install --release b11429 --backend vulkan",
        "tsuku-llm serve --require-gpu -- -m '/a folder/of models/x.gguf'",
        "sudo apt install libvulkan1 mesa-vulkan-drivers",
        "https://releases.example/a-very-long-path/with-hyphens/and-more-of-it/file.tar.gz",
        "/var/lib/a-very-long-path/with-hyphens/and-more-of-it/file.tar.gz",
        "'/mnt/a folder with many blanks in its name/file'",
    ],
)
@pytest.mark.parametrize("width", [20, 40, 80])
def test_what_people_copy_stays_on_one_line(whole: str, width: int) -> None:
    line = f"hint: the one way that is left to you now is this: {whole}; then try it again"
    shown = wrapped(line, width)
    assert whole in shown
    assert shown.count("\n") > 0


def test_a_whole_command_to_run_stays_on_one_line() -> None:
    line = "would run: /opt/llama-server -m /models/x.gguf --host 127.0.0.1"
    assert wrapped(line, 40).splitlines() == ["would run:", line.replace("would run: ", "  ")]


@given(st.lists(st.from_regex(r"[a-z'-]{1,12}", fullmatch=True)), st.integers(40, 120))
def test_wrapping_loses_no_word_and_fits(words: list[str], width: int) -> None:
    line = " ".join(words)
    shown = wrapped(line, width)
    assert shown.split() == line.split()
    if "'" not in line:
        assert all(len(each) <= width for each in shown.splitlines())


@given(
    st.lists(st.from_regex(r"[a-zé\u0301\u4e00-\u4e20]{1,12}", fullmatch=True)), st.integers(40, 90)
)
def test_wide_and_combining_characters_are_counted_in_columns(words: list[str], width: int) -> None:
    line = " ".join(words)
    shown = wrapped(line, width)
    assert shown.split() == line.split()
    assert all(columns(each) <= width for each in shown.splitlines())
    # As much as fits stands on a line.
    for this, after in pairwise(shown.splitlines()):
        assert columns(f"{this} {after.split()[0]}") > width


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("\u200d", 0),
        ("\uff46", 2),
        ("\uff8a", 1),
        ("é", 1),
    ],
)
def test_a_terminal_has_columns_not_characters(text: str, count: int) -> None:
    assert columns(text) == count
    (first, second) = table([(text, "x"), ("abcdef", "y")], indent=0)
    assert columns(first) == columns(second) == 9


@pytest.mark.parametrize("name", ["cuda-12.8", "変種-12.8"])
def test_a_long_cell_goes_on_below_its_own_column(name: str) -> None:
    reason = "there is an AMD GPU (gfx1030), but the runtime of ROCm is not installed here"
    rows = table([("rank", "variant", ""), ("-", name, reason)])
    shown = wrapped(rows[1], 50).splitlines()
    assert len(shown) > 2
    start = columns(rows[1]) - columns(reason)
    assert {columns(each) - columns(each.lstrip()) for each in shown[1:]} == {start}
    assert " ".join(each.strip() for each in shown[1:]) in reason
    assert all(columns(each) <= 50 for each in shown)
    # Without room below the cell it is better to begin further left.
    narrow = wrapped(rows[1], start + 10).splitlines()
    assert {len(each) - len(each.lstrip()) for each in narrow[1:]} == {4}


def test_without_a_terminal_a_line_stays_as_it_is() -> None:
    line = "hint: " + "word " * 50
    assert Style().shaped(line) == line


# --- the program -------------------------------------------------------------------------


def test_a_pipe_gets_neither_colours_nor_wrapped_lines(
    program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = program("serve", "--gpu-layers", "20")
    assert "\x1b" not in result.stderr
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "words", [("--color", "always", "frob"), ("config", "frob", "--color=always")]
)
def test_colours_on_demand(words: tuple[str, ...], program: Run) -> None:
    result = program(*words)
    assert result.stderr.startswith("\x1b[1;31merror[bad-usage]:\x1b[0m there is no command")
    assert "\n\x1b[1mhint:\x1b[0m " in result.stderr


def test_json_has_no_colours(program: Run) -> None:
    result = program("--color", "always", "--json", "frob")
    assert result.code == 2
    assert "\x1b" not in result.stderr
    assert "\\u001b" not in result.stdout


def test_exact_answers_have_no_colours(program: Run) -> None:
    shown = program("completion", "bash", "--color", "always", "-v")
    assert shown == program("completion", "bash")


@pytest.mark.parametrize("words", [("-q", "explain"), ("explain", "--quiet")])
def test_quiet_leaves_the_answer_and_drops_the_notes(words: tuple[str, ...], home: Path) -> None:
    env = environment(home, TSUKU_LLM_FAKE_HARDWARE=str(MACHINE))
    loud = run_program("explain", env=env)
    assert "the hardware is simulated" in loud.stderr
    assert run_program(*words, env=env) == Result(0, loud.stdout, "")


@pytest.mark.parametrize(
    ("words", "shown"), [(["list"], "done\nstart it\n"), (["list", "-q"], "done\n")]
)
def test_quiet_drops_the_next_step(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(argv: Sequence[str], console: Console) -> CommandResult:
        if "-q" in argv:
            console.be_quiet()
        return CommandResult(lines=("done",), next_step="start it")

    assert run(words, answer) == 0
    assert capsys.readouterr() == (shown, "")


def test_quiet_leaves_errors(home: Path) -> None:
    result = run_program("serve", "-q", "--", "-m", "x.gguf", env=environment(home))
    assert result.code == 7
    assert result.stderr.startswith("error[")


@pytest.mark.parametrize("words", [("-v", "config", "get"), ("config", "get", "--verbose")])
def test_verbose_adds_the_details(words: tuple[str, ...], program: Run) -> None:
    plain = program("config", "get", "llm.backend")
    told = program(*words, "llm.backend").stdout
    assert told.startswith(plain.stdout)
    assert "  source: default\n" in told


def test_details_have_a_line_for_each_key() -> None:
    data = {"a": 1, "b": {"c": [{"d": True}, "x"]}, "none": None, "empty": [], "text": "two\nlines"}
    assert details(data) == (
        "",
        "  a: 1",
        "  b:",
        "    c:",
        "      -",
        "        d: true",
        "      - x",
    )
    assert details({}) == ()


@pytest.mark.parametrize("words", [("-q", "-v", "list"), ("-v", "list", "-q")])
def test_quiet_and_verbose_exclude_each_other(words: tuple[str, ...], program: Run) -> None:
    result = program(*words)
    assert result.code == 2
    assert "cannot be combined" in result.stderr


def test_after_two_dashes_they_are_the_servers() -> None:
    line = serve_again(("-q", "--", "-q", "-v"), without=("-q",), options=())
    assert line[-4:] == ["serve", "--", "-q", "-v"]


# --- real terminals ----------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words", [("serve", "--gpu-layers", "20"), ("-q", "explain")], ids=" ".join
)
def test_no_word_is_cut_in_a_terminal(words: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    # Only a word that is wider than the terminal is cut, such as the name of the snapshot.
    machine = tmp_path / "m.json"
    machine.write_bytes(MACHINE.read_bytes())
    env = environment(tmp_path / "home", TSUKU_LLM_FAKE_HARDWARE=str(machine))
    piped = run_program(*words, env=env)
    command = (*COMMAND, *words)
    with screen(tmp_path / "tmux", command, env, columns=columns, rows=60) as shown:
        shown.exit_code()
        lines, coloured = shown.lines, shown.coloured()
    assert len(lines) > len((piped.stdout + piped.stderr).splitlines())
    assert " ".join(lines).split() == (piped.stderr + piped.stdout).split()
    assert ("\x1b[" in coloured) is (words[0] == "serve")


def test_no_color_holds_on_a_terminal(tmp_path: Path) -> None:
    env = environment(tmp_path / "home", NO_COLOR="1")
    with screen(tmp_path / "tmux", (*COMMAND, "frob"), env, columns=80) as shown:
        shown.exit_code()
        assert "error[bad-usage]: there is no command 'frob'" in shown.text
        assert not ESCAPE.search(shown.coloured())


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        subprocess.run(
            [*COMMAND, "frob"],
            env=environment(tmp_path, TERM="dumb"),
            stderr=slave,
            stdout=slave,
            check=False,
        )
        assert b"\x1b" not in os.read(master, 10_000)
    finally:
        os.close(master)
        os.close(slave)


# --- what -v adds to an error --------------------------------------------------------------


def test_verbose_adds_causes_urls_and_places_to_an_error(tmp_path: Path) -> None:
    env = environment(
        tmp_path / "home", TSUKU_LLM_REPOSITORY_URL="https://me:secret@127.0.0.1:9/x/"
    )
    plain = run_program("repository", "refresh", env=env)
    said = run_program("-v", "repository", "refresh", env=env)
    assert plain.code == said.code == 4
    added = [line for line in said.stderr.splitlines() if line not in plain.stderr.splitlines()]
    assert "  cause: ConnectError: [Errno 111] Connection refused" in added
    assert any(line.startswith("  url: https://127.0.0.1:9/x/metadata/") for line in added), added
    assert f"  config file: {tmp_path / 'home' / 'config.toml'}" in added
    assert f"  data: {tmp_path / 'home' / 'llm'}" in added
    assert "secret" not in said.stderr
    assert "Traceback" not in said.stderr
    # The hint is the last that one reads, and the document does not depend on -v.
    assert said.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    both = [
        run_program("--json", *words, "repository", "refresh", env=env) for words in ((), ("-v",))
    ]
    assert both[0].document == both[1].document


def test_verbose_names_the_path_of_a_disk_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    env = environment(home)
    added = run_program("-v", "prune", env=env).stderr
    assert f"  path: {home}" in added
    assert "  cause: NotADirectoryError: " in added


def test_verbose_adds_nothing_to_what_is_typed_wrong(program: Run) -> None:
    assert program("-v", "install", "frob") == program("install", "frob")
