"""The program as click sees it; each command is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from tsuku_llm import __version__
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Group, show
from tsuku_llm.cli.console import Console
from tsuku_llm.errors import UsageError

PROGRAM = "tsuku-llm"

COMMANDS = {
    "install": "Install the build of llama.cpp's server that fits this machine.",
    "explain": "Explain for each variant why it fits this machine or not.",
    "backends": "Compare every variant with this machine and with what is installed.",
    "probe": "Show what this machine has.",
    "doctor": "Find the first broken link between the GPU and the server.",
    "serve": "Launch the installed llama-server.",
    "status": "Show the servers in the background.",
    "logs": "Print the log of a server in the background.",
    "stop": "Stop a server in the background.",
    "run": "Run another tool of the build that serve starts.",
    "bench": "Measure every variant that fits, with your own model.",
    "list": "List installed versions, or releases on offer.",
    "which": "Print the path of the server that serve starts, or of another TOOL of its build.",
    "update": "Update to the newest release of the channel.",
    "use": "Make an installed version the active one.",
    "rollback": "Go back to the previous active version.",
    "uninstall": "Remove installed versions.",
    "prune": "Remove versions and leftovers that are no longer needed.",
    "verify": "Hash every installed file and report what has changed.",
    "config": "Read and change settings.",
    "repository": "Add, list and remove signed repositories.",
}
"""Each command and its summary. This way ``--help`` imports none of them.

A command's module in ``commands`` has the command's name and defines it as ``command``.
"""


class Program(Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        # Only names from the table come here: no other module can be imported this way.
        command: click.Command = import_module(f"tsuku_llm.cli.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table as it is; click would import every command for its summary."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(context: click.Context, __: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        show(Answer({"version": __version__}, (f"{context.info_name} {__version__}",)))


VERSION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)


program = Program(
    PROGRAM,
    help="""Pick, download, verify, install, update and launch the build of llama.cpp's
    server that fits this machine's GPU.

    First: tsuku-llm install. Then: tsuku-llm serve -- -m MODEL.gguf""",
    params=[VERSION],
)


def invoke(argv: Sequence[str], console: Console, group: click.Group = program) -> Answer:
    """Parse the arguments and run the command of a group that they name.

    Raises ``UsageError``.
    """
    name = group.name or PROGRAM
    # Without arguments show the help, and exit with 0.
    arguments = list(argv) or ["--help"]
    try:
        with group.make_context(name, arguments, obj=console) as context:
            answer: Answer = group.invoke(context)
    except click.ClickException as error:
        # The context has noted the command by now, so the JSON document can name it.
        raise _as_usage_error(error, name) from error
    return answer


def _as_usage_error(error: click.ClickException, name: str) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else name
    return UsageError(error.format_message().rstrip("."), hint=f"see: {path} --help")
