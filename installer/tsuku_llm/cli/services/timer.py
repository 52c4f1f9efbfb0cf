"""``update --systemd-unit``: a service and a timer for unattended updates, printed or written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tsuku_llm.cli.render.services import timer as render
from tsuku_llm.cli.render.services.units import environment_file
from tsuku_llm.cli.services.command_line import this_program
from tsuku_llm.cli.services.units import units_answer
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.safe_text import Secret, has_secret
from tsuku_llm.steps.servers.service import handover, keep_credentials
from tsuku_llm.steps.session import Session, working_folder

_TIME = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_WINDOW = re.compile(f"{_TIME}-{_TIME}", re.ASCII)
_DAY = 24 * 60

_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables without which this machine may reach no host; a service does not have the user's."""


def timer(
    session: Session,
    chosen: Mapping[str, str | None],
    *,
    window: str | None,
    metrics: Path | None,
    output: Path | None,
) -> CommandResult:
    """Return the units that update with these settings; secrets go to a file."""
    line = [*this_program(), "update", "--unattended"]
    if metrics:
        line += ["--metrics", str(working_folder() / metrics)]
    for key, value in chosen.items():
        line += [f"--{key}", value] if value is not None else []
    given = handover((), session.machine.environ)
    told: dict[str, str] = dict(given.told)
    secret: dict[str, Secret] = {}
    for name in (*_NETWORK, *map(str.lower, _NETWORK)):
        if value := session.machine.environ.get(name):
            # A proxy needs no scheme; no other of these has an "@".
            if "@" in value or has_secret(value):
                secret[name] = Secret(value)
            else:
                told[name] = value
    # The servers' own keys are theirs.
    secret |= {name: given.secret[name] for name in given.secret if name.startswith("TSUKU_")}
    credentials = None
    if secret:
        content = environment_file(secret)
        credentials = keep_credentials(session.paths.state, render.UNIT, secret, content)
        session.user.note(
            f"{', '.join(secret)}: not in the unit; it loads {credentials}, which only you can read"
        )
    parsed = None if window is None else _window(window)
    texts = render.unit_texts(line, told, credentials, parsed)
    return units_answer(texts, credentials, output, (f"start it with: {render.START_COMMAND}",))


def _window(text: str) -> tuple[int, int]:
    """Parse a part of the day; one that ends before it begins ends on the next day."""
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"--window {text!r} is not a part of the day", hint="write it as 02:00-05:00"
        )
    hours, minutes, to_hours, to_minutes = map(int, found.groups())
    begin, end = hours * 60 + minutes, to_hours * 60 + to_minutes
    return begin, (end - begin) % _DAY or _DAY - 1
