"""The man page, made from the commands: one page, so that a reader can search all of them."""

import re

import click

import tsuku_llm.ground.errors
from ci.reference.commands import contexts
from tsuku_llm.cli.program import program
from tsuku_llm.config.keys import KEYS, text_of
from tsuku_llm.ground.errors import TsukuError


def man_page() -> str:
    """Return the page in the language of man (roff); it names no version and no date."""
    root, *commands = contexts(program, 80)
    lines = [
        '.TH TSUKU\\-LLM 1 "" "tsuku\\-llm" "User Commands"',
        *_section("NAME"),
        f"tsuku\\-llm \\- {escaped(root.command.get_short_help_str(1000)).rstrip('.')}",
        *_section("SYNOPSIS"),
        *_synopsis(root),
        *_section("DESCRIPTION"),
        *_paragraphs(root.command.help or ""),
        *_options(root),
        *_section("COMMANDS"),
    ]
    for context in commands:
        lines += [f".SS {_quoted(context.command_path)}", *_synopsis(context), ".PP"]
        lines += _paragraphs(context.command.help or "")
        # The subcommands follow by themselves.
        if not isinstance(context.command, click.Group):
            lines += _options(context)
            lines += _examples(context)
    lines += [*_section("EXAMPLES"), *_examples(root), *_section("EXIT STATUS")]
    for code, slugs in exit_codes().items():
        lines += [".TP", f"\\fB{code}\\fR", escaped(", ".join(slugs))]
    lines += [
        *_paragraphs(
            "The exit code of serve is the server's own once it has served, and that of run is the "
            "tool's own: any number."
        ),
        *_section("SETTINGS"),
        *_paragraphs("Each is a key of the config file, and the variable below it overrides it."),
    ]
    for key in KEYS:
        default = text_of(key.default)
        about = f"{key.variable}: {key.help}." + (f" Default: {default}." if default else "")
        lines += [".TP", f"\\fB{escaped(key.name)}\\fR", escaped(about)]
    lines += [
        *_section("FILES"),
        *_paragraphs("tsuku-llm config path prints the path of the config file."),
        *_section("ENVIRONMENT"),
        ".TP",
        "\\fBTSUKU_HOME\\fR",
        "The folder for the config file, the builds and the servers, instead of the system's.",
    ]
    return "\n".join(lines) + "\n"


def exit_codes() -> dict[int, list[str]]:
    """Return the slugs of the errors that end with each exit code."""
    found: dict[int, list[str]] = {0: ["success"], 1: ["a bug in this program"]}
    kinds = [each for each in vars(tsuku_llm.ground.errors).values() if isinstance(each, type)]
    for kind in kinds:
        if issubclass(kind, TsukuError) and kind is not TsukuError:
            found.setdefault(kind.exit_code, []).append(kind.slug)
    return dict(sorted(found.items()))


def _section(name: str) -> list[str]:
    return [f".SH {_quoted(name)}"]


def _synopsis(context: click.Context) -> list[str]:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return [f"\\fB{escaped(context.command_path)}\\fR {escaped(pieces)}"]


def _options(context: click.Context) -> list[str]:
    lines = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            lines += [".TP", f"\\fB{escaped(record[0])}\\fR", escaped(record[1])]
    return lines


def _examples(context: click.Context) -> list[str]:
    lines = []
    for call, meaning in getattr(context.command, "examples", {}).items():
        lines += [".TP", f"\\fB{escaped(call)}\\fR", escaped(meaning)]
    return lines


def _paragraphs(text: str) -> list[str]:
    found = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text)]
    return [line for each in found if each for line in (".PP", escaped(each))]


def _quoted(text: str) -> str:
    return '"' + escaped(text) + '"'


def escaped(text: str) -> str:
    """Return a text that man shows as it is: an option's dashes can be copied and searched."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    # At the begin of a line these two are instructions.
    return "\\&" + text if text.startswith((".", "'")) else text
