"""A systemd unit for a user's server. Pure.

Its hardening needs neither root nor user namespaces, which many systems forbid: so it has no
``ProtectSystem=`` and similar options. ``MemoryDenyWriteExecute=`` is missing because GPU drivers
compile shaders and kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.operations.credentials import Handover, variable_of

_TEMPLATE = """\
# Made by: tsuku-llm serve --systemd-unit
# Save it as ~/.config/systemd/user/{unit}.service, then:
#   systemctl --user daemon-reload && systemctl --user enable --now {unit}
# To run it while you are not logged in: loginctl enable-linger

[Unit]
Description=llama.cpp server {name}, launched by tsuku-llm
StartLimitIntervalSec=300
StartLimitBurst=3

[Service]
Type=exec
WorkingDirectory={folder}
{environment}ExecStart={line}
Restart=on-failure
RestartSec=5
# Not repaired by a restart: usage, nothing that fits, trust, store, launch, no GPU.
RestartPreventExitStatus=2 3 5 6 7 8
TimeoutStopSec=15

UMask=0077
LimitCORE=0
# This also keeps nvidia-modprobe from making /dev/nvidia-uvm when CUDA is first used;
# nvidia-persistenced makes it at boot.
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
"""Words that need no quotes."""


def text(
    name: str, line: Sequence[str], given: Handover, folder: Path, credentials: Path | None
) -> str:
    """Return the unit that runs ``line`` and the server's words in ``folder``.

    ``credentials`` is the file with the variables that the unit must not show, None without any.
    """
    variables = "".join(
        f"Environment={_quoted(f'{each}={value}')}\n" for each, value in given.told.items()
    )
    if credentials:
        variables += f"EnvironmentFile={_path(credentials)}\n"
    # systemd replaces $NAME in arguments; in the program's path (the first word) "$" is not
    # special.
    words = [_quoted(line[0]), *(_quoted(word).replace("$", "$$") for word in line[1:])]
    for place, word in enumerate(given.words):
        # systemd fills in the value from the file of credentials when it starts the server.
        secret = f"${{{variable_of(place)}}}"
        words.append(secret if word is None else _quoted(word).replace("$", "$$"))
    return _TEMPLATE.format(
        unit="tsuku-llm" if name == "default" else f"tsuku-llm-{name}",
        name=name,
        folder=_path(folder),
        environment=variables,
        line=" ".join(words),
    )


def environment_file(variables: Mapping[str, str]) -> str:
    """Return the text of a file for ``EnvironmentFile=``, in the syntax of systemd.exec(5)."""
    return "".join(
        f'{name}="' + re.sub(r'[\\"$`]', r"\\\g<0>", value) + '"\n'
        for name, value in variables.items()
    )


def _path(path: Path) -> str:
    """Return a path for options that take one whole line: only ``%`` is special there."""
    return str(path).replace("%", "%%")


def _quoted(word: str) -> str:
    """Return a word as systemd.syntax(7) and systemd.unit(5) want it: quoted, ``%`` doubled."""
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", _escape, escaped) + '"'


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
