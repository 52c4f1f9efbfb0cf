"""The program's commands by purpose.

This module imports nothing, as ``main`` loads it at each start, also for --version.
"""

from __future__ import annotations

COMPLETE = "_TSUKU_LLM_COMPLETE"
"""The variable in which a shell asks for completions: its name."""


class LazyCommand:
    """A command in the help of the program: its summary, and its module in ``cli.commands``.

    The name of its package is a text: so the client has the commands of other packages in its help,
    and imports none of their modules.
    """

    __slots__ = ("module", "package", "summary")

    def __init__(self, module: str, summary: str, package: str = "tsuku_llm") -> None:
        self.module = module
        self.summary = summary
        self.package = package


SECTIONS = {
    "Run a server": {
        "serve": LazyCommand("serve", "Start the installed server with your arguments."),
        "chat": LazyCommand("models", "Talk to a model in this terminal."),
        "models": LazyCommand("models", "List the models that are on this machine already."),
        "status": LazyCommand("servers", "Show the servers in the background."),
        "logs": LazyCommand("servers", "Print the log of a server in the background."),
        "open": LazyCommand("servers", "Open the web page of a server in the background."),
        "launch": LazyCommand("servers", "Print what a coding tool needs to use a server."),
        "stop": LazyCommand("servers", "Stop a server in the background."),
        "restart": LazyCommand("servers", "Start a server in the background again."),
        "service": LazyCommand("service", "Print what starts a server without a person."),
        "run": LazyCommand("serve", "Run another tool of the installed build."),
        "bench": LazyCommand("bench", "Measure every variant that fits, with your own model."),
    },
    "Install and update builds": {
        "install": LazyCommand("install", "Install the build that fits this machine."),
        "update": LazyCommand("update", "Update to the newest release of the channel."),
        "list": LazyCommand("versions", "List installed versions, or the releases on offer."),
        "use": LazyCommand("versions", "Make an installed version the active one."),
        "rollback": LazyCommand("versions", "Go back to the previous active version."),
        "uninstall": LazyCommand("versions", "Remove installed versions."),
        "prune": LazyCommand("versions", "Remove old versions and leftovers."),
        "which": LazyCommand("versions", "Print the path of the server, or of another tool."),
    },
    "Settings": {
        "config": LazyCommand("config", "Read and change settings."),
        "repository": LazyCommand("repository", "Add, list and remove signed repositories."),
    },
    "Many machines": {
        "mirror": LazyCommand(
            "mirror", "Copy a repository and its archives for other machines.", "tsuku_operator"
        ),
        "fleet": LazyCommand(
            "fleet",
            "Install and update builds on many machines, through Ansible.",
            "tsuku_operator",
        ),
        "bundle": LazyCommand(
            "bundle",
            "Put the program and builds for other machines into one file.",
            "tsuku_operator",
        ),
    },
    "Find out why": {
        "doctor": LazyCommand("explain", "Find out why the GPU is not used, and what helps."),
        "explain": LazyCommand("explain", "Show why each variant fits this machine or not."),
        "backends": LazyCommand(
            "explain", "List every variant, whether it fits, and whether it is installed."
        ),
        "probe": LazyCommand("explain", "Show the GPUs and drivers of this machine."),
        "verify": LazyCommand("versions", "Check every installed file for changes."),
        "fallback": LazyCommand("versions", "List the versions that failed and are left out."),
    },
    "This program": {
        "help": LazyCommand("about", "Show the help of a command."),
        "version": LazyCommand(
            "about", "Show the version of this program, and how it was installed."
        ),
        "completion": LazyCommand("about", "Print a script that completes words in a shell."),
        "self-update": LazyCommand("about", "Update this program; the builds stay as they are."),
    },
}
"""The commands by purpose, the most used first, so that ``--help`` imports none of them.

NAME is ``NAME_command`` in its module, with underscores.
"""

COMMANDS = {name: each for section in SECTIONS.values() for name, each in section.items()}
