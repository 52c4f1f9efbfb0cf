"""What a message tells to run exists: the command, its options, and the settings that it names.

It also works as it is printed: messages have this program's name from ``ground.own_name``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from test_messages import messages

from ci.reference.commands import PROGRAMS
from tsuku_llm.cli.table import COMMANDS
from tsuku_llm.config.keys import KEYS

INSTALLER = Path(__file__).parents[2] / "installer"
FROM_ELSEWHERE = ("ansible_collections", "bundle_start.py")
"""What has no copy of this program to name: other machines have one, or will have one."""

GROUPS = {group.name: group for group in PROGRAMS.values()}
CALL = re.compile(r"(?P<before>: )?\b(?P<name>tsuku-(?:llm|publish)) (?P<words>[a-z-][^;,:()`'…]*)")


def unknown_in(text: str) -> list[str]:
    """What a message names of our commands, options and settings that does not exist."""
    settings = {key.name for key in KEYS}
    # "tsuku.llm.variant" is a module of the Ansible collection.
    named = re.findall(r"(?<![\w.])llm\.[a-z_]+\b(?!\.)", text)
    wrong = [name for name in named if name not in settings]
    for found in CALL.finditer(text):
        command: click.Command = GROUPS[found["name"]]
        words = found["words"].split()
        while isinstance(command, click.Group) and words:
            inner = command.get_command(click.Context(command), words[0])
            if inner is None:
                break
            command = inner
            words.pop(0)
        if isinstance(command, click.Group) and words and words[0][0] != "-":
            # "run tsuku-llm again" is no call; what follows a colon is one.
            outermost = command is GROUPS[found["name"]]
            wrong += [found[0]] if found["before"] or not outermost else []
            continue
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        ours = words[: words.index("--")] if "--" in words else words
        wrong += [
            f"{found[0]}: {word}"
            for word in ours
            if re.fullmatch(r"--[a-z-]+", word) and word not in options | {"--help"}
        ]
    return wrong


def test_every_command_option_and_setting_in_a_message_exists() -> None:
    found = messages()
    assert sum("tsuku-llm " in text for text in found.values()) > 80
    assert not {place: wrong for place, text in found.items() if (wrong := unknown_in(text))}


@pytest.mark.parametrize(
    "text",
    [
        "run: tsuku-llm instal",
        "see: tsuku-llm doctor --hard",
        "or: tsuku-llm repository rename NAME",
        "set a mirror: tsuku-llm config set llm.mirrors URL",
        "check llm.repository_urls",
    ],
)
def test_a_hint_that_leads_nowhere_is_seen(text: str) -> None:
    assert unknown_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "run tsuku-llm again",
        "tsuku-llm serve -- -m MODEL.gguf --port 8080",
        "to stay: tsuku-llm config set llm.release installed",
        "run: tsuku-llm install --backend cuda; or: tsuku-llm doctor --backend cuda",
    ],
)
def test_a_hint_that_is_right_passes(text: str) -> None:
    assert not unknown_in(text)


WRITTEN_OUT = re.compile(
    # ``f"{TSUKU} install"``, not this; but the path of a script that is not ours may be a text.
    rf"(?<![\w./\\-])tsuku-llm (?:{'|'.join(COMMANDS)}|--\w+)\b"
    # ``f"{SUDO}modprobe"``; on the host of a container the user is another one.
    r"|(?<!host: )\bsudo (?=\w)"
    # In a text without an f before it.
    r"|\{(?:ROOTS_)?TSUKU\}|\{SUDO\}"
)


def written_out(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal that has a call as we would type it.

    A docstring is for readers of the code, except that of a command, which is its help.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_command"):
            continue
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr):
                skipped.add(id(each.value))
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in skipped else None
        if isinstance(text, str) and WRITTEN_OUT.search(text):
            yield node.lineno, text


def test_a_message_has_our_name_as_this_copy_is_called() -> None:
    paths = [path for path in INSTALLER.rglob("*.py") if not {*path.parts} & {*FROM_ELSEWHERE}]
    assert len(paths) > 300
    assert not [
        f"{path.relative_to(INSTALLER)}:{line}: {text}"
        for path in paths
        for line, text in written_out(ast.parse(path.read_text("utf-8")))
    ]


@pytest.mark.parametrize("file", ["launch/failed/causes.toml", "machine/fixes.toml"])
def test_a_table_of_texts_has_our_name_as_this_copy_is_called(file: str) -> None:
    text = (INSTALLER / "tsuku_llm" / file).read_text("utf-8")
    # On a host the user is another one than here.
    lines = (line.partition("n the host")[0] for line in text.splitlines())
    found = [WRITTEN_OUT.search(line) for line in lines if not line.startswith("#")]
    assert {match[0] for match in found if match} == {"{TSUKU}", "{SUDO}"}


@pytest.mark.parametrize(
    "code",
    [
        "hint = 'run: tsuku-llm install'",
        "hint = f'run: tsuku-llm install --backend {name}'",
        "hint = 'see: tsuku-llm --help'",
        "hint = 'run: {TSUKU} install'",
        "fix = 'sudo modprobe nvidia'",
        'def list_command():\n    "To update: tsuku-llm update"',
    ],
)
def test_a_call_that_is_written_out_is_seen(code: str) -> None:
    assert [*written_out(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        "hint = f'run: {TSUKU} install, or: {SUDO}modprobe nvidia'",
        "hint = 'another tsuku-llm (pid 5) is still running'",
        "fix = 'on the host: sudo nvidia-ctk cdi generate'",
        'def named():\n    "Return it for tsuku-llm list"',
    ],
)
def test_what_is_no_call_is_not(code: str) -> None:
    assert not [*written_out(ast.parse(code))]
