"""The text of the systemd units of ``update --unattended``: a service and its timer.

What the options mean is in systemd.timer(5) and systemd.service(5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.cli.render.services.units import (
    RESTRICTED,
    USER_FOLDER,
    environment_lines,
    quoted_line,
)
from tsuku_llm.ground.own_name import TSUKU

UNIT = "tsuku-llm-update"


START_COMMAND = f"systemctl --user daemon-reload && systemctl --user enable --now {UNIT}.timer"
"""The command that enables the timer once the files are in place."""


_HEAD = f"""\
# Made by: {TSUKU} update --systemd-unit
# Save both units as {USER_FOLDER}/{UNIT}.{{service,timer}}, then:
#   {START_COMMAND}
# To update while you are not logged in: loginctl enable-linger
"""

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

_DAY = 24 * 60


def unit_texts(
    line: Sequence[str],
    told: Mapping[str, str],
    credentials: Path | None,
    window: tuple[int, int] | None,
) -> dict[str, str]:
    """Return each unit of an update by a timer, by the name of its file.

    ``line`` updates, with the variables in ``told``. ``credentials`` is the file with the variables
    that the unit must not show, None without any. ``window`` is the part of the day, in minutes:
    when it begins, and how long it lasts. Without one it runs once a day, at any time.
    """
    begin, length = window or (0, _DAY - 1)
    hours, minutes = divmod(begin, 60)
    why = "A machine that was off updates soon after it is on again."
    if window:
        why = "A machine that is off in this part of the day updates in the next one."
    return {
        f"{UNIT}.service": _SERVICE.format(
            head=_HEAD,
            environment=environment_lines(told, credentials),
            line=" ".join(quoted_line(line)),
            restricted=RESTRICTED,
        ),
        f"{UNIT}.timer": _TIMER.format(
            head=_HEAD,
            calendar=f"*-*-* {hours:02}:{minutes:02}:00",
            delay=length,
            persistent_why=why,
            persistent="no" if window else "yes",
        ),
    }
