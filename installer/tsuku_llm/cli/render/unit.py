"""A unit of systemd for a user's server. Pure.

What hardens it needs neither root nor user namespaces, which many systems forbid: no
``ProtectSystem=`` and its like. ``MemoryDenyWriteExecute=`` is missing because GPU drivers
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
# To have it without being logged in: loginctl enable-linger

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
# Not mended by another try: usage, nothing that fits, trust, store, launch, no GPU.
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


def text(
    name: str, line: Sequence[str], given: Handover, folder: Path, credentials: Path | None
) -> str:
    """The unit that runs ``line`` and the server's words in ``folder``.

    ``credentials`` is the file of the variables that it must not name, None where there are none.
    """
    variables = "".join(
        f"Environment={_quoted(f'{each}={value}')}\n" for each, value in given.told.items()
    )
    if credentials:
        variables += f"EnvironmentFile={_path(credentials)}\n"
    words = [_quoted(line[0]), *(_quoted(word).replace("$", "$$") for word in line[1:])]
    for place, word in enumerate(given.words):
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
    """The text of a file that ``EnvironmentFile=`` reads, as systemd.exec(5) has it."""
    return "".join(
        f'{name}="' + re.sub(r'[\\"$`]', r"\\\g<0>", value) + '"\n'
        for name, value in variables.items()
    )


def _path(path: Path) -> str:
    """A path as the options have it that take one whole line: only ``%`` is special."""
    return str(path).replace("%", "%%")


def _quoted(word: str) -> str:
    """A word as systemd.syntax(7) and systemd.unit(5) want it: quoted, ``%`` doubled."""
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", _escape, escaped) + '"'


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
