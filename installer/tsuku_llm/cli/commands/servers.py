"""The commands for servers in the background: status, logs, open, launch, stop, restart."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.render.services import servers as render
from tsuku_llm.cli.services.coding_tools import TOOLS
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import Declined, LaunchError, UsageError
from tsuku_llm.ground.files import write_output
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import printable
from tsuku_llm.steps.servers.background import log_of, page_of, servers, stop, stop_all

_AGAIN = 2.0
"""Seconds between two looks of ``status --watch``."""


@click.command("status", cls=Command)
@click.option("--watch", is_flag=True, help="Show them again every 2 seconds, until Ctrl-C.")
@click.option("--prometheus", is_flag=True, help="Print metrics for Prometheus.")
@click.option(
    "--output",
    type=options.FILE,
    metavar="FILE",
    help="With --prometheus: write the metrics into FILE, for a node exporter to collect.",
)
@options.server_option
@options.server
@click.pass_obj
def status_command(
    console: Console,
    *,
    watch: bool,
    prometheus: bool,
    output: Path | None,
    name: str | None,
    server: str | None,
) -> CommandResult:
    """Show the servers in the background.

    With NAME, show that one; if there is none of that name, the exit code is 7.
    """
    if output and not prometheus:
        raise UsageError("--output is only for metrics", hint="add --prometheus")
    if watch and (prometheus or console.json):
        other = "--prometheus" if prometheus else "--json"
        raise UsageError(f"--watch and {other} cannot be combined", hint="omit one of them")
    chosen = options.server_named(server, name)
    with open_session(console, looking=True, tolerant=True) as session:
        if watch:
            show_again(console, lambda: render.lines(servers(session, chosen)))
            return CommandResult()
        found = servers(session, chosen)
    if not prometheus:
        return CommandResult(found, render.lines(found))
    from tsuku_llm.cli.render.services import metrics

    text = metrics.text(found.servers)
    if output:
        write_output(output, text)
    lines = () if output else tuple(text.removesuffix("\n").split("\n"))
    return CommandResult({"metrics": text}, lines, exact=True)


def show_again(
    console: Console,
    look: Callable[[], tuple[str, ...]],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Show what each look returns in place of the one before it, until Ctrl-C."""
    style = console.style(sys.stdout)
    drawn = streams.is_terminal(sys.stdout)
    try:
        while True:
            lines = [style.shaped(printable(line)) for line in look()]
            text = "".join(f"{line}\n" for line in lines)
            if drawn:
                # The cursor goes to the top (ESC [H), and what is below is cleared (ESC [J).
                height = streams.terminal_size(sys.stdout)[1]
                text = "\x1b[H\x1b[J" + "\n".join(text.split("\n")[: height - 1])
            streams.say(sys.stdout, text if drawn else f"{text}\n")
            wait(_AGAIN)
    except KeyboardInterrupt as stop:
        # A signal that ends the program is a subclass.
        if type(stop) is not KeyboardInterrupt:
            raise


@click.command("logs", cls=Command)
@options.server_option
@options.server
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the server ends.")
@click.pass_obj
def logs_command(
    console: Console, *, name: str | None, server: str | None, follow: bool
) -> CommandResult:
    """Print the log of a server in the background.

    Without NAME, of the one called default.
    """
    chosen = options.server_named(server, name) or options.DEFAULT_NAME
    if follow and console.json:
        raise UsageError("--follow and --json cannot be combined", hint="omit one of them")
    with open_session(console, looking=True, tolerant=True) as session:
        # An iterator: a log of any length is printed as it is read.
        said = log_of(session.paths.state, chosen, follow=follow)
        if console.json:
            # "replace": the server may be in the middle of a character now.
            text = b"".join(said).decode("utf-8", "replace")
            return CommandResult({"name": chosen, "lines": text.splitlines()})
        for data in said:
            streams.pass_on(sys.stdout, data)
    return CommandResult()


@click.command("open", cls=Command)
@options.server_option
@options.server
@click.pass_obj
def open_command(console: Console, *, name: str | None, server: str | None) -> CommandResult:
    """Open the web page of a server in the background.

    It opens in your browser. Without NAME: the page of the server called default.
    """
    chosen = options.server_named(server, name) or options.DEFAULT_NAME
    with open_session(console, looking=True, tolerant=True) as session:
        url = page_of(session.paths.state, chosen)
    from tsuku_llm.cli.terminal.browser import open_page, why_none

    if not open_page(url):
        raise LaunchError(why_none(), hint=f"open it in a browser yourself: {url}")
    return CommandResult({"name": chosen, "page_url": url}, (f"opening {url}",))


@click.command(
    "launch",
    cls=Command,
    examples={
        f"{TSUKU} launch claude": "Show what Claude Code needs to use the server called default.",
        f"{TSUKU} launch codex --name big": "The same for Codex and another server.",
        f"{TSUKU} launch opencode --write": "Ask, then add it to the file of OpenCode.",
    },
)
@click.argument("tool", metavar="TOOL", type=click.Choice(list(TOOLS)))
@options.server_option
@click.option("--write", is_flag=True, help="Ask, then add it to the tool's own file.")
@options.yes
@click.pass_obj
def launch_command(
    console: Console, *, tool: str, name: str | None, write: bool, yes: bool
) -> CommandResult:
    """Print what a coding tool needs to use a server.

    TOOL is claude, codex, opencode, continue, zed, aider, vscode, open-webui, or openai for any
    other that takes an address of OpenAI's API. The tool is not started. With --write, the settings
    of claude, codex and opencode are added to the file in which they read them; what is in it
    stays, and a copy of it is kept. The server runs in the background; without --name it is the one
    called default.
    """
    from string import Template

    from tsuku_llm.steps.servers.conversation import served_as

    if yes and not write:
        raise UsageError("--yes is only for --write", hint="add --write, or omit --yes")
    row = TOOLS[tool]
    with open_session(console, looking=True, tolerant=True) as session:
        chosen = options.DEFAULT_NAME if name is None else name
        base, models, has_key = served_as(session, chosen)
        environ = session.machine.environ
    values = {
        "url": base.removesuffix("/v1"),
        "base": base,
        "model": models[0],
        # The key itself is a secret, and goes to no terminal.
        "key": "THE-KEY-OF-YOUR-SERVER" if has_key else "none",
    }
    place, settings = (Template(text).substitute(values) for text in (row.place, row.settings))
    answer = {
        "tool": tool,
        "name": chosen,
        "place": place,
        "settings": settings,
        "models": models,
        "page": row.source,
        "written": None,
        "kept": None,
    }
    others = [f"# one of its models: {', '.join(models)}"] if len(models) > 1 else []
    if not write:
        lines = (f"# {place}", *others, *settings.splitlines(), f"# see: {row.source}")
        return CommandResult(answer, lines, exact=True)
    by_hand = f"{TSUKU} launch {tool} --name {chosen}"
    if row.file is None:
        raise UsageError(
            f"the settings of {tool} are not in a file that this program can change safely",
            hint=f"see them, and add them by hand: {by_hand}",
        )
    added = row.file.settings or row.settings
    if has_key and "$key" in added:
        raise UsageError(
            f"the server {chosen} wants a key, and the settings of {tool} would have it in a file",
            hint=f"see them, and put them in with the key by hand: {by_hand}",
        )
    path = row.file.path(environ)
    if not (yes or console.ask(f"Add the settings of this server to {path}?")):
        way_out = "" if console.can_ask else ": without a terminal, add --yes"
        raise Declined(f"nothing was written{way_out}")
    from tsuku_llm.config.tool_files import add_to_file

    kept = add_to_file(path, Template(added).substitute(values))
    told = [f"{path} has the settings now: start {tool} again"]
    told += [f"the file as it was before the first change: {kept}"] if kept else []
    if line := Template(row.file.in_shell).substitute(values):
        told.append(f"it also needs this in its shell: {line}")
    return CommandResult({**answer, "written": path, "kept": kept}, (*told, *others))


@click.command("stop", cls=Command)
@options.server_option
@options.server
@click.option("--all", "everything", is_flag=True, help="Stop every server in the background.")
@click.pass_obj
def stop_command(
    console: Console, *, name: str | None, server: str | None, everything: bool
) -> CommandResult:
    """Stop a server in the background.

    Without NAME, stop the one called default. A server that does not end in time is killed.
    """
    chosen = options.server_named(server, name)
    if everything and chosen is not None:
        raise UsageError(f"--all and {chosen} cannot be combined", hint="omit one of them")
    # looking: a server must be stoppable even if another user could write to our folders.
    with open_session(console, looking=True, tolerant=True) as session:
        one = options.DEFAULT_NAME if chosen is None else chosen
        stopped = stop_all(session.paths.state) if everything else (stop(session.paths.state, one),)
    return CommandResult({"stopped": stopped}, render.stopped_lines(stopped))


@click.command("restart", cls=Command)
@options.server_option
@options.server
@click.pass_obj
def restart_command(console: Console, *, name: str | None, server: str | None) -> CommandResult:
    """Start a server in the background again.

    It gets the arguments that it has, and runs the active version: also after an update. Without
    NAME, it is the one called default.
    """
    from tsuku_llm.steps.servers.server_trials import restart

    chosen = options.server_named(server, name) or options.DEFAULT_NAME
    with open_session(console, looking=True, tolerant=True) as session:
        console.status.show(f"the server {chosen} starts again")
        try:
            record = restart(session.paths.state, chosen)
        finally:
            console.status.close()
    return CommandResult(record, render.started_lines(record))
