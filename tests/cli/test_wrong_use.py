"""Wrong uses of each command: what is said, and that it names what to type instead."""

import shlex
from collections.abc import Callable
from typing import Any

import click
import pytest
from support.program import Result

from tsuku_llm.cli.program import program as group

Run = Callable[..., Result]

STRAY = {
    "install cuda": "tsuku-llm install --backend cuda",
    "update vulkan": "tsuku-llm install --backend vulkan",
    "update check": "tsuku-llm update --check",
    "rollback b100": "tsuku-llm use b100",
    "backends cuda": "tsuku-llm explain --backend cuda",
    "models 'my model'": "tsuku-llm serve -m 'my model'",
    "list available": "tsuku-llm list --available",
    "doctor nvidia": "tsuku-llm doctor --backend nvidia",
    "serve cuda": "tsuku-llm serve --backend cuda",
    "explain rocm": "tsuku-llm explain --backend rocm",
}


@pytest.mark.parametrize("line", STRAY)
def test_a_stray_word_is_answered_with_what_may_be_meant(line: str, program: Run) -> None:
    result = program(*shlex.split(line))
    assert (result.code, result.stdout) == (2, "")
    assert " does not take '" in result.stderr.splitlines()[0]
    assert result.stderr.splitlines()[1:] == [f"hint: did you mean: {STRAY[line]}"]


def all_commands() -> dict[str, click.Command]:
    """Each command that is not a group, by the words that call it."""
    root = click.Context(group, info_name="tsuku-llm")
    found: dict[str, click.Command] = {}
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        assert command
        if isinstance(command, click.Group):
            below = (
                (each, command.get_command(root, each)) for each in command.list_commands(root)
            )
            found |= {
                f"{name} {each}": under for each, under in below if under and not under.hidden
            }
        else:
            found[name] = command
    return found


COMMANDS = all_commands()
TAKES_WORDS = {"chat", "help", "uninstall", "verify", "run", "serve", "explain", "bench"}
TAKES_WORDS |= {"repository add", *(f"service {way}" for way in ("systemd", "launchd", "windows"))}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - TAKES_WORDS))
def test_no_command_takes_one_word_too_many(name: str, program: Run) -> None:
    arguments = [each for each in COMMANDS[name].params if isinstance(each, click.Argument)]
    words = [
        each.type.choices[0] if isinstance(each.type, click.Choice) else "x" for each in arguments
    ]
    for each in COMMANDS[name].params:
        if isinstance(each, click.Option) and each.required:
            words += [each.opts[-1], "x"]
    result = program(*name.split(), *words, "frob")
    assert (result.code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first == f"error[bad-usage]: tsuku-llm {name} does not take 'frob'"
    assert second.startswith("hint: ")


def values() -> list[tuple[str, tuple[str, ...], str]]:
    """Each parameter that takes a text: its command, the words with an empty one, its name."""
    found = []
    for name, command in COMMANDS.items():
        before: tuple[str, ...] = ()
        for each in command.params:
            if isinstance(each, click.Option) and not each.is_flag and each.name:
                others = needed(command, each)
                found.append((name, (*others, each.opts[-1], ""), each.opts[-1]))
                if each.opts[-1].startswith("--"):
                    found.append((name, (*others, f"{each.opts[-1]}="), each.opts[-1]))
            elif isinstance(each, click.Argument) and each.name not in ("arguments", "value"):
                shown = each.human_readable_name.strip("[].")
                found.append((name, (*before, ""), shown))
                before += ("x",)
    return found


def needed(command: click.Command, option: click.Option) -> tuple[str, ...]:
    """The words without which nothing is read: other options, and the file of ``bundle create``."""
    words: list[str] = []
    for each in command.params:
        if each is not option and isinstance(each, click.Option) and each.required:
            words += [each.opts[-1], "x"]
        if isinstance(each, click.Argument) and each.required and each.name == "file":
            words.append("x")
    return tuple(words)


@pytest.mark.parametrize(("name", "words", "parameter"), values())
def test_an_empty_text_is_no_value(
    name: str, words: tuple[str, ...], parameter: str, program: Run
) -> None:
    result = program(*name.split(), *words)
    assert (result.code, result.stdout) == (2, "")
    first, *_, hint = result.stderr.splitlines()
    setting = f"llm.{parameter[2:].replace('-', '_')}"
    assert first.partition(": ")[2] in {
        f"{parameter} must not be empty",
        f"{setting} must not be empty",
    }
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "line", ["serve --backend", "install --release", "prune --keep", "probe --record", "--color"]
)
def test_a_missing_value_is_told_with_the_help_of_that_command(line: str, program: Run) -> None:
    *name, option = line.split()
    result = program(*name, option)
    command = " ".join(["tsuku-llm", *name])
    assert result.code == 2
    assert result.stderr == (
        f"error[bad-usage]: {option} needs a value\nhint: see: {command} --help\n"
    )


def test_an_option_of_the_server_is_shown_where_it_belongs(program: Run) -> None:
    said = program("serve", "-m", "x.gguf", "--port", "80").stderr
    assert said.endswith("tsuku-llm serve -m x.gguf -- --port 80\n")


def test_a_secret_of_the_server_is_not_repeated(program: Run) -> None:
    said = program("serve", "-m", "x.gguf", "--api-key", "hunter2-hunter2").stderr
    assert "tsuku-llm serve -m x.gguf -- --api-key" in said
    assert "hunter2" not in said


def test_verbose_adds_no_empty_line_where_there_is_nothing_to_add(program: Run) -> None:
    assert program("-v", "status").stdout == program("status").stdout


def test_clicks_own_words_are_one_plain_line(program: Run) -> None:
    said = program("prune", "--keep", "x").stderr
    assert "Invalid value for '--keep': 'x' is not a whole number\n" in said
    said = program("completion").stderr
    assert "Choose from: bash, zsh, fish, powershell\n" in said
    assert "\\n" not in said


def test_what_uninstall_needs_is_told_for_each_mistake(as_json: Callable[..., Any]) -> None:
    none, both = as_json("uninstall"), as_json("uninstall", "x", "--all")
    assert none["error"]["message"] == "no version to remove is named"
    assert both["error"]["message"] == "--all and names of versions cannot be combined"


def test_the_arguments_of_a_server_and_of_a_tool_are_not_touched(program: Run) -> None:
    for words in (
        ("serve", "--", "cuda", ""),
        ("run", "llama-quantize", "in", ""),
    ):
        assert program(*words).code == 7, "nothing is installed"
