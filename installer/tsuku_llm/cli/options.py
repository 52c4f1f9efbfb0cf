"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tsuku_llm.config.keys import key_named, parse_word
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)

DEFAULT_NAME = "default"
"""The name of a server in the background that was given none."""


def completed_by(
    kind: str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes a parameter in a shell with the values of a kind."""

    def complete(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        from tsuku_llm.cli import values

        return values.complete(kind, context, typed)

    return complete


def completed_by_files(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def completed_by_models(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the name of a model that is here, or of a file."""
    from tsuku_llm.cli import values

    return values.complete_model(typed)


def setting(name: str, metavar: str = "NAME") -> Callable[[F], F]:
    """Return the option that overrides one setting for this run."""
    key = key_named(f"llm.{name}")
    return click.option(
        key.flag,
        name,
        metavar=metavar,
        help=f"{key.help[0].upper()}{key.help[1:]}.",
        shell_complete=completed_by(key.name),
    )


def repeated(flag: str, name: str, text: str, metavar: str = "NAME") -> Callable[[F], F]:
    """Return an option that may be repeated; its values come as the parameter ``name``."""
    kinds = {"--backend": "llm.backend", "--channel": "llm.channel", "--release": "release"}
    return click.option(
        flag,
        name,
        multiple=True,
        metavar=metavar,
        type=FILE if metavar == "FILE" else None,
        shell_complete=completed_by(kinds[flag]) if flag in kinds else None,
        help=f"{text}; may be repeated.",
    )


def _release(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse what cannot be a release: an empty text must not mean the newest one."""
    if text is None:
        return None
    if not text.strip():
        raise UsageError(
            "--release must not be empty", hint="to give no value: leave --release out"
        )
    try:
        return parse_word(text)
    except ValueError as error:
        raise UsageError(f"--release {error}", hint=f"see: {TSUKU} list --available") from error


offline = click.option(
    "--offline", is_flag=True, help="Use no network, only what this machine already has."
)
yes = click.option("--yes", is_flag=True, help="Answer every question with yes.")
allow_revoked = click.option(
    "--allow-revoked", is_flag=True, help="Allow a release that its publisher has revoked."
)


def _checked_name(_: click.Context, __: click.Parameter, name: str) -> str:
    """Refuse a name that no server can have before anything is looked up or downloaded."""
    if name in ("", DEFAULT_NAME):  # an empty value has an error of its own
        return name
    from tsuku_llm.instances.record import checked_name  # most starts name none

    return checked_name(name)


name = click.option(
    "--name",
    metavar="NAME",
    default=DEFAULT_NAME,
    show_default=True,
    callback=_checked_name,
    help="The name of the server in the background.",
    shell_complete=completed_by("server"),
)
server = click.argument(
    "server", metavar="[NAME]", required=False, shell_complete=completed_by("server")
)
server_option = click.option(
    "--name",
    metavar="NAME",
    help="Another way to give NAME.",
    shell_complete=completed_by("server"),
)


def server_named(argument: str | None, option: str | None) -> str | None:
    """Return the server that a command names as an argument or with --name; None if it does not."""
    if argument is not None and option not in (None, argument):
        raise UsageError(f"two servers are named: {argument} and {option}", hint="omit one of them")
    return option if argument is None else argument


model = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=completed_by_models,
    help="A GGUF file, or the name of a model that is here already: see models.",
)
release = click.option(
    "--release",
    metavar="TAG",
    callback=_release,
    shell_complete=completed_by("release"),
    help="Use this release, such as b11429 or v0.6.0.",
)
hardware = click.option(
    "--hardware",
    type=FILE,
    metavar="FILE",
    help="Decide for the machine that probe --record wrote to FILE.",
)
arguments = click.argument(
    "arguments",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[-- ARGUMENTS...]",
    shell_complete=completed_by_files,
)
