"""``service launchd`` and ``service windows``: a start at login, printed or written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsuku_llm.cli.render.services import login as render
from tsuku_llm.cli.services.command_line import serve_again, this_program
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.instances.record import checked_name, unit_name
from tsuku_llm.launch.plan.addresses import expected_addresses
from tsuku_llm.steps.servers.service import handover, write_units
from tsuku_llm.steps.session import Session, working_folder


def login_file(
    session: Session, name: str, argv: Sequence[str], *, windows: bool, output: Path | None
) -> CommandResult:
    """Return the file that serves with these arguments at login.

    Raises ``UsageError`` for a secret: other programs of the user can read such a file.
    """
    at = argv.index("--") + 1 if "--" in argv else len(argv)
    given = handover(argv[at:], session.machine.environ)
    if given.secret:
        raise UsageError(
            "a file for the login must not hold a secret",
            facts=tuple(given.secret),
            hint="unset these variables, and let the server read files: -- --api-key-file FILE "
            "--mcp-servers-config FILE",
        )
    label = unit_name(checked_name(name))
    # launchd watches its own process. A task that detaches shows no window after the start.
    options = ["--detach"] if windows else []
    words = serve_again(argv, without=(), without_values=("--output",), options=options)
    line = [*this_program(), *words]
    folder = working_folder()
    if windows:
        file, text = f"{label}.xml", render.windows_task(line, folder)
        if given.told:
            session.user.note(
                f"warning: a task has no variables of its own; set them for your user with setx: "
                f"{', '.join(given.told)}"
            )
    else:
        log = Path("~/Library/Logs").expanduser() / f"{label}.log"
        file = f"{label}.plist"
        text = render.launchd_plist(label, line, folder, given.told, log)
    data = {"unit": text, "units": {file: text}, "credentials": None, "written": ()}
    if output is None:
        return CommandResult(data, tuple(text.rstrip("\n").split("\n")), exact=True)
    (path,) = write_units(output, {file: text}, "utf-16" if windows else "utf-8")
    start = (
        f"schtasks /Create /TN {label} /XML {shell_word(str(path))}"
        if windows
        else f"launchctl bootstrap gui/$(id -u) {render.AGENTS}/{file}"
    )
    told = expected_addresses(argv[at:], session.machine.environ)
    lines = (
        f"written: {path}",
        *(f"{what}: {text}" for what, text in told),
        f"start it with: {start}",
    )
    return CommandResult({**data, "written": (path,)}, lines)
