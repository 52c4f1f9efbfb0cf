"""``update --systemd-unit``: a service and a timer for unattended updates, printed or written.

What the options mean is in systemd.timer(5) and systemd.service(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.cli.render.services.units import (
    RESTRICTED,
    SYSTEM_FOLDER,
    USER_FOLDER,
    environment_file,
    environment_lines,
    quoted_line,
)
from tsuku_llm.cli.services.command_line import this_program
from tsuku_llm.cli.services.units import scope_of, units_answer
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import Secret, has_secret
from tsuku_llm.steps.servers.service import handover, keep_credentials
from tsuku_llm.steps.session import Session, working_folder

_TIME = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_WINDOW = re.compile(f"{_TIME}-{_TIME}", re.ASCII)
_DAY = 24 * 60

_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables without which this machine may reach no host; a service does not have the user's."""

_UNIT = "tsuku-llm-update"
_HEAD = """\
# Made by: {made}
# Save both units as {folder}/{unit}.{{service,timer}}, then:
#   {start}
"""

_LINGER = "# To update while you are not logged in: loginctl enable-linger\n"

_SERVICE = """\
{head}
[Unit]
Description=Update of the llama.cpp builds, by tsuku-llm

[Service]
Type=oneshot
{environment}ExecStart={line}
# A download and a load may take long; each of them has a limit of its own.
TimeoutStartSec=infinity
# An update that is stopped is finished, or taken back, by the next one.
KillMode=mixed
Nice=10
IOSchedulingClass=idle

UMask=0022
LimitCORE=0
NoNewPrivileges=yes
{restricted}
"""

_TIMER = """\
{head}
[Unit]
Description=Time for an update of the llama.cpp builds

[Timer]
OnCalendar={calendar}
# Each machine at another moment: a host serves them one after the other, and a release that is
# bad does not reach all at once.
RandomizedDelaySec={delay}min
AccuracySec=1min
# {persistent_why}
Persistent={persistent}

[Install]
WantedBy=timers.target
"""


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
        credentials = keep_credentials(session.paths.state, _UNIT, secret, content)
        session.user.note(
            f"{', '.join(secret)}: not in the unit; it loads {credentials}, which only you can read"
        )
    parsed = None if window is None else _window(window)
    system = output is not None and scope_of(output) == "system"
    systemctl = "systemctl" if system else "systemctl --user"
    start = f"{systemctl} daemon-reload && {systemctl} enable --now {_UNIT}.timer"
    folder = SYSTEM_FOLDER if system else USER_FOLDER
    made = f"{TSUKU} update --systemd-unit"
    head = _HEAD.format(made=made, folder=folder, unit=_UNIT, start=start)
    texts = _unit_texts(head if system else head + _LINGER, line, told, credentials, parsed)
    return units_answer(texts, credentials, output, (f"start it with: {start}",))


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


def _unit_texts(
    head: str,
    line: Sequence[str],
    told: Mapping[str, str],
    credentials: Path | None,
    window: tuple[int, int] | None,
) -> dict[str, str]:
    """Return each unit of an update by a timer, by the name of its file.

    ``head`` is the comment at the top. ``line`` updates, with the variables in ``told``.
    ``credentials`` is the file with the variables that the unit must not show, None without any.
    ``window`` is the part of the day, in minutes: when it begins, and how long it lasts. Without
    one it runs once a day, at any time.
    """
    begin, length = window or (0, _DAY - 1)
    hours, minutes = divmod(begin, 60)
    why = "A machine that was off updates soon after it is on again."
    if window:
        why = "A machine that is off in this part of the day updates in the next one."
    return {
        f"{_UNIT}.service": _SERVICE.format(
            head=head,
            environment=environment_lines(told, credentials),
            line=" ".join(quoted_line(line)),
            restricted=RESTRICTED,
        ),
        f"{_UNIT}.timer": _TIMER.format(
            head=head,
            calendar=f"*-*-* {hours:02}:{minutes:02}:00",
            delay=length,
            persistent_why=why,
            persistent="no" if window else "yes",
        ),
    }
