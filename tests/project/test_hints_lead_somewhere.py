"""What a message tells to run exists: the command, its options, and the settings that it names."""

import re

import click
import pytest
from test_messages import messages

from ci.reference.commands import PROGRAMS
from tsuku_llm.config.keys import KEYS

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
