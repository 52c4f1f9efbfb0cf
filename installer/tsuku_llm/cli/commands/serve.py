"""The commands ``serve`` and ``run``, which start a program of the installed build."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import ARGV, Launching
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.config.keys import parse_duration, parse_share, seconds_of, share_of
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.launch.plan.report import StartReport
    from tsuku_llm.steps.serve.version_start import Serving
    from tsuku_llm.steps.session import Session


_ALL = "all"
"""The share of ``--require-gpu`` without a value: all layers that were asked for."""


def _share(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Parse a share of the GPU; refuse any other text before the start."""
    try:
        return text if text in (None, _ALL) else parse_share(text)
    except ValueError as error:
        raise UsageError(
            f"--require-gpu {error}", hint="such as 0.9, or 0 to allow every share"
        ) from error


def _seconds(_: click.Context, __: click.Parameter, text: str) -> int:
    try:
        return seconds_of(parse_duration(text))
    except ValueError as error:
        hint = "such as 5m, or 0 for no limit"
        raise UsageError(f"--start-timeout {error}", hint=hint) from error


F = TypeVar("F", bound=Callable[..., Any])

_STARTING = (
    options.model,
    options.setting("backend"),
    click.option(
        "--require-gpu",
        is_flag=False,
        flag_value=_ALL,
        metavar="[SHARE]",
        callback=_share,
        help="End with exit code 8 if less than SHARE of the model is on the GPU, such as 0.5 or "
        "50%; 0 also accepts an unknown part. Without SHARE, all layers that were asked for.",
    ),
    click.option(
        "--require-fit",
        is_flag=True,
        help="End with exit code 7 if the model probably does not fit into the free memory.",
    ),
    click.option(
        "--fallback/--no-fallback",
        default=None,
        help="Try the next variant if a backend fails, or do not. By default, llm.fallback "
        "decides.",
    ),
    options.name,
    options.setting("idle_timeout", "TIME"),
    click.option(
        "--start-timeout",
        metavar="TIME",
        default="5m",
        show_default=True,
        callback=_seconds,
        help="The time without progress after which a start in the background is stopped; "
        "0: never.",
    ),
    options.allow_revoked,
    options.arguments,
)


def starting(command: F) -> F:
    """Add the options that say how a server starts; each command of ``service`` has them, too."""
    for option in reversed(_STARTING):
        command = option(command)
    return command


replace = click.option(
    "--exec",
    "replace",
    is_flag=True,
    help="Replace this process with the server, for containers; not with --json.",
)


@click.command(
    "serve",
    cls=Launching,
    examples={
        f"{TSUKU} serve -m MODEL.gguf": "Serve a model until Ctrl-C.",
        f"{TSUKU} serve -m qwen2.5:7b -- -c 8192": "Serve one that is here already, by its name "
        "in models, with a context of 8192.",
        f"{TSUKU} serve": "Serve all that are here, each loaded at its first request.",
        f"{TSUKU} serve --detach --name big -m MODEL.gguf -- --port 8081": "Serve in the "
        "background; then see status, logs and stop.",
        f"{TSUKU} serve --require-gpu -m MODEL.gguf": "Fail if the model is not on the GPU.",
        f"{TSUKU} serve -- --help": "Show the options of llama-server itself.",
    },
)
@starting
@click.option("--dry-run", is_flag=True, help="Show what would be started; start nothing.")
@replace
@click.option(
    "--detach",
    is_flag=True,
    help="Serve in the background; see status, logs and stop.",
)
@click.option(
    "--notify",
    type=click.Choice(["systemd", "starter", "library"]),
    is_flag=False,
    flag_value="systemd",
    metavar="",  # the others are for this program's own processes
    help="Report to systemd when the server is ready (Type=notify), and its state.",
)
@click.option(
    "--open",
    "opens_page",
    is_flag=True,
    help="Open the server's web page in your browser once the server is ready.",
)
@click.pass_context
def serve_command(
    context: click.Context,
    *,
    model: str | None,
    backend: str | None,
    require_gpu: str | None,
    require_fit: bool,
    fallback: bool | None,
    dry_run: bool,
    replace: bool,
    detach: bool,
    notify: str | None,
    opens_page: bool,
    name: str,
    idle_timeout: str | None,
    start_timeout: int,
    allow_revoked: bool,
    arguments: tuple[str, ...],
) -> CommandResult:
    """Start the installed server with your arguments.

    Everything after -- goes to llama-server, such as the port and the context.

    The exit code is the server's own once it has served: any number, also 1. A server that does
    not start ends with 7.
    """
    _require_consistent(context)
    console: Console = context.obj
    argv: tuple[str, ...] = context.meta[ARGV]
    with open_session(
        console,
        backend=backend,
        allow_revoked=allow_revoked,
        fallback=FALLBACK[fallback],
        idle_timeout=idle_timeout,
    ) as session:
        from tsuku_llm.launch.plan.addresses import require_address

        require_address(arguments, session.machine.environ)
        if model is not None:
            argv, arguments = with_model(session, model, argv, arguments)
        from tsuku_llm.launch.plan.wishes import names_a_model
        from tsuku_llm.steps.serve.version_start import Serving

        how = Serving(
            name=name,
            replace=replace,
            require_gpu=require_gpu is not None,
            min_gpu_share=None if require_gpu in (None, _ALL) else share_of(require_gpu),
            require_fit=require_fit,
            start_timeout=start_timeout,
            # Programs in other folders find the same server: it runs in none of theirs.
            own_folder=notify == "library",
        )
        if not (model or names_a_model(arguments, session.machine.environ)):
            how = _with_models(session, how, advises=console.can_ask and not notify)
        # Before the other ways: a dry run starts nothing.
        if dry_run:
            from tsuku_llm.cli.render.services import servers as render
            from tsuku_llm.steps.serve.tools import planned

            plan = planned(session, arguments, how)
            return CommandResult(plan, render.planned_lines(plan))
        if detach:
            from tsuku_llm.cli.services import background
            from tsuku_llm.steps.serve.fallback import wanted_version

            # The process in the background has no terminal to offer a missing build.
            wanted_version(session)
            return background.detach(console, session, name, argv, opens_page=opens_page)
        if notify:
            from tsuku_llm.cli.services import background

            way = background.notify if notify == "systemd" else background.supervise
            return way(console, session, arguments, how)
        return _in_foreground(console, session, arguments, how, opens_page=opens_page)


_WAYS = ("replace", "detach", "notify")
"""The ways to serve of which a start has one; without any it serves in the foreground."""


def _require_consistent(context: click.Context) -> None:
    """Refuse options that need another one, or that exclude each other."""
    spelled = {each.name: each.opts[0] for each in context.command.params}
    given = context.params
    ways = [name for name in _WAYS if given[name]]
    # No user waits for the page where another program takes this one's place or watches it.
    if given["opens_page"]:
        ways = ["opens_page", *(name for name in ways if name != "detach")]
    if len(ways) > 1:
        raise UsageError(
            f"{spelled[ways[0]]} and {spelled[ways[1]]} cannot be combined",
            hint="omit one of them",
        )
    # After exec this program can no longer print a document.
    if context.obj.json and given["replace"] and not given["dry_run"]:
        raise UsageError("--exec and --json cannot be combined", hint="omit one of them")


def _in_foreground(
    console: Console,
    session: Session,
    arguments: tuple[str, ...],
    how: Serving,
    *,
    opens_page: bool,
) -> CommandResult:
    """Serve until the server ends; tell its addresses once it is ready."""
    from tsuku_llm.steps.serve.serve import serve

    follower = _Follower(console, opens_page=opens_page)
    # With --exec nothing can follow: this process becomes the server.
    code = serve(session, arguments, how if how.replace else how._replace(sink=follower))
    trouble = follower.report.trouble if follower.report else None
    failure = ReportedError(
        "server-exit",
        f"the server ended with exit code {code}",
        facts=(trouble.text,) if trouble else (),
    )
    # Only a program is told of the start and of a failure: people have read the server's output.
    data = {"server_exit_code": code, "start": follower.report}
    return CommandResult(data, exit_code=code, failure=failure if code and console.json else None)


class _Follower:
    """The follower of a server in the foreground; ``report`` is the last one, None before any.

    The thread that follows the start calls it, but not after ``serve`` has returned.
    """

    def __init__(self, console: Console, *, opens_page: bool) -> None:
        self.report: StartReport | None = None
        self._console = console
        self._opens_page = opens_page
        self._told = 0

    def __call__(self, report: StartReport) -> None:
        self.report = report
        # Once for each process: after a restart the server may have another port.
        if not report.ready or report.pid == self._told:
            return
        self._told = report.pid
        for what, address in report.addresses:
            self._console.tell(f"{what}: {address}")
        if self._opens_page:
            from tsuku_llm.cli.services.background import open_or_tell

            self._opens_page = False
            open_or_tell(self._console, report)


def with_model(
    session: Session, model: str, argv: tuple[str, ...], arguments: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return our arguments and the server's, with the files of the model among the server's."""
    from tsuku_llm.cli.services.command_line import with_server_words
    from tsuku_llm.steps.report.models import model_arguments

    words = model_arguments(session, model, arguments)
    # Not the name: a process in the background, or a unit, starts with the same files each time.
    argv = with_server_words(argv, words[: len(words) - len(arguments)])
    return argv, words


def _with_models(session: Session, how: Serving, *, advises: bool) -> Serving:
    """Add every model to a start that names none; if there is none, tell how to get one."""
    from tsuku_llm.model_caches.finding import local_models
    from tsuku_llm.steps.report.models import without_a_model

    found = local_models(session.machine.environ, session.settings.model_path).models
    # A script that starts llama-server as a router needs no advice.
    if not found and advises and session.reader.active():
        session.user.note(without_a_model(session.reader))
    return how._replace(models=found)


FALLBACK = {True: "auto", False: "off", None: None}
"""The flag as a value of the setting; None leaves it to the setting."""


@click.command(
    "run",
    cls=Launching,
    examples={f"{TSUKU} run llama-cli -- -m MODEL.gguf": "Chat with a model in the terminal."},
)
@click.option("--dry-run", is_flag=True, help="Show what would be started; start nothing.")
@options.allow_revoked
@click.argument("tool", shell_complete=options.completed_by("tool"))
@options.arguments
@click.pass_obj
def run_command(
    console: Console,
    *,
    dry_run: bool,
    allow_revoked: bool,
    tool: str,
    arguments: tuple[str, ...],
) -> CommandResult:
    """Run another tool of the installed build.

    TOOL is a program of the build that serve starts. Everything after -- goes to it. The exit code
    is the tool's own.
    """
    # The tool replaces this process and writes to stdout itself.
    if console.json and not dry_run:
        raise UsageError(
            "--json does not apply to the tool's output",
            hint="omit --json, or add --dry-run; put arguments for the tool after --",
        )
    with open_session(
        console,
        allow_revoked=allow_revoked,
    ) as session:
        if dry_run:
            from tsuku_llm.cli.render.services import servers as render
            from tsuku_llm.steps.serve.tools import planned_tool

            plan = planned_tool(session, tool, arguments)
            return CommandResult(plan, render.planned_lines(plan))
        from tsuku_llm.steps.serve.tools import run_tool

        return CommandResult(exit_code=run_tool(session, tool, arguments))
