"""A unit of systemd for a user's server. Pure.

What hardens it needs neither root nor user namespaces, which many systems forbid: no
``ProtectSystem=`` and its like. ``MemoryDenyWriteExecute=`` is missing because GPU drivers
compile shaders and kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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

_KEPT = re.compile(r"TSUKU_HOME|TSUKU_LLM_[A-Z_]+")
_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")


def text(name: str, line: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """The unit that runs ``line`` in ``folder``, with our settings from the environment."""
    kept = sorted(variable for variable in environ if _KEPT.fullmatch(variable))
    return _TEMPLATE.format(
        unit="tsuku-llm" if name == "default" else f"tsuku-llm-{name}",
        name=name,
        folder=str(folder).replace("%", "%%"),
        environment="".join(f"Environment={_quoted(f'{each}={environ[each]}')}\n" for each in kept),
        line=" ".join([_quoted(line[0]), *(_quoted(word).replace("$", "$$") for word in line[1:])]),
    )


def _quoted(word: str) -> str:
    """A word as systemd.syntax(7) and systemd.unit(5) want it: quoted, ``%`` doubled."""
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", _escape, escaped) + '"'


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
