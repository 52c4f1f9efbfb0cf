"""The text of systemd units: the server's, and for a start on demand a socket's and a proxy's.

What the options mean is in systemd.service(5), systemd.exec(5) and systemd-socket-proxyd(8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.ground.safe_text import Secret
    from tsuku_llm.steps.servers.service import Handover

USER_FOLDER = "~/.config/systemd/user"
SYSTEM_FOLDER = "/etc/systemd/system"


class OnDemand(NamedTuple):
    """A start on demand: systemd listens at ``listen``, and ``proxy`` connects to the server.

    The server ends ``idle`` seconds after the last connection.
    """

    listen: str
    proxy: str
    idle: int


class Service(NamedTuple):
    """A server as a service: ``line`` starts it, with the arguments in ``given`` behind.

    ``unit`` is the unit's name without its kind.
    ``folder`` is the working folder. ``credentials`` is the file with the variables that the unit
    must not show, None without any. With ``replace`` the process becomes the server. A ``system``
    service is one of the machine; it runs as its own user, who is in ``groups``.
    """

    name: str
    unit: str
    line: Sequence[str]
    given: Handover
    folder: Path
    credentials: Path | None = None
    replace: bool = False
    system: bool = False
    groups: Sequence[str] = ()
    on_demand: OnDemand | None = None

    @property
    def start_command(self) -> str:
        """The command that enables the units once their files are in place."""
        systemctl = "systemctl" if self.system else "systemctl --user"
        started = f"{self.unit}.socket" if self.on_demand else self.unit
        return f"{systemctl} daemon-reload && {systemctl} enable --now {started}"

    @property
    def socket(self) -> str:
        """The server's own socket for a start on demand, as systemd completes it."""
        # The name is short and plain: a socket's path has at most 107 bytes.
        return f"%t/{self.unit}/server.sock"


def unit_texts(service: Service) -> dict[str, str]:
    """Return each unit by the name of its file; the server's comes first."""
    texts = {f"{service.unit}.service": _server(service)}
    if service.on_demand:
        # NAME has no dot, so no server of another name has units of these names.
        proxy = f"{service.unit}.proxy.service"
        texts[proxy] = _proxy(service, service.on_demand)
        texts[f"{service.unit}.socket"] = _socket(service, service.on_demand, proxy)
    return texts


def _head(service: Service) -> str:
    folder = SYSTEM_FOLDER if service.system else USER_FOLDER
    names = "it as" if not service.on_demand else "the three units as"
    files = "{service,proxy.service,socket}" if service.on_demand else "service"
    linger = (
        ""
        if service.system
        else ("# To run it while you are not logged in: loginctl enable-linger\n")
    )
    return (
        f"# Made by: {TSUKU} service systemd\n"
        f"# Save {names} {folder}/{service.unit}.{files}, then:\n"
        f"#   {service.start_command}\n{linger}"
    )


# The hardening needs neither root nor user namespaces, which many systems forbid: so it has no
# ``ProtectSystem=`` and similar options. ``DynamicUser=`` of a system's service implies them.
# ``MemoryDenyWriteExecute=`` is missing because GPU drivers compile shaders and kernels.

RESTRICTED = """\
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native"""
"""What neither the server nor an update needs, so a service may not do it."""

_SERVER = """\
{head}
[Unit]
Description=llama.cpp server {name}, launched by tsuku-llm
{unit}
[Service]
{type}WorkingDirectory={folder}
{user}{environment}ExecStart={line}
{restart}TimeoutStopSec=15

UMask=0077
LimitCORE=0
# This also keeps nvidia-modprobe from making /dev/nvidia-uvm when CUDA is first used;
# nvidia-persistenced makes it at boot.
NoNewPrivileges=yes
{restricted}
{install}"""

_SUPERVISED = """\
# Started once the server answers. Its status and its last words are in systemctl status, and in
# the journal.
Type=notify
NotifyAccess=main
# tsuku-llm ends a start that makes no progress: see --start-timeout.
TimeoutStartSec=infinity
# A server that neither answers nor works for this long is started again.
WatchdogSec=60
# tsuku-llm hands the signal on; two of them would end the server in the middle of a request.
KillMode=mixed
# Ended by SIGTERM while it loaded.
SuccessExitStatus=143
"""

_LIMIT = """\
StartLimitIntervalSec=300
StartLimitBurst=3
"""

# Two starts in order are at least the idle time apart. A connection that waits starts a server that
# fails again and again.
_LIMIT_ON_DEMAND = """\
# Without the proxy nothing needs it: so an idle server ends.
StopWhenUnneeded=yes
StartLimitIntervalSec={seconds}
StartLimitBurst={starts}
"""

_RESTART = """\
Restart=on-failure
RestartSec=5
# Not repaired by a restart: usage, nothing that fits, trust, store, launch, no GPU.
RestartPreventExitStatus=2 3 5 6 7 8
"""

_STARTS = 5
"""Starts within as many idle times after which systemd gives up."""

# The service's user exists while the service runs. systemd makes the folders and gives them to it.
# All servers share the folders, so a shader is compiled once: tsuku-llm names a folder below the
# cache for each driver.
_USER = """\
DynamicUser=yes
User=tsuku-llm
{groups}StateDirectory=tsuku-llm
CacheDirectory=tsuku-llm
CacheDirectoryMode=0700
Environment=HOME=%S/tsuku-llm
Environment=XDG_STATE_HOME=%S
# The drivers' folders are below this one: without them they compile at every start.
Environment=XDG_CACHE_HOME=%C/tsuku-llm
"""

_PROXY = """\
{head}
[Unit]
Description=Connections for the llama.cpp server {name}
# The server is ready before the first connection is passed on, and ends together with the proxy.
BindsTo={unit}.service
After={unit}.service {unit}.socket
Requires={unit}.socket

[Service]
# Not Type=notify: the proxy of systemd 252 never says that it is ready.
Type=exec
ExecStart={proxy} --exit-idle-time={idle}s {socket}
{user}NoNewPrivileges=yes
"""

_SOCKET = """\
{head}
[Unit]
Description=Address of the llama.cpp server {name}, which the first connection starts

[Socket]
ListenStream={listen}
Service={proxy}

[Install]
WantedBy=sockets.target
"""


def _server(service: Service) -> str:
    user = ""
    if service.system:
        # A group that the system lacks would prevent the start.
        groups = f"SupplementaryGroups={' '.join(service.groups)}\n" if service.groups else ""
        user = _USER.format(groups=groups)
    if service.on_demand:
        # Removed at the end, so that no old socket is in the way of the next start.
        user += f"RuntimeDirectory={service.unit}\nRuntimeDirectoryMode=0700\n"
    on_demand = service.on_demand
    target = "multi-user.target" if service.system else "default.target"
    return _SERVER.format(
        restricted=RESTRICTED,
        head=_head(service),
        name=service.name,
        unit=_LIMIT_ON_DEMAND.format(seconds=_STARTS * on_demand.idle, starts=_STARTS)
        if on_demand
        else _LIMIT,
        type="Type=exec\n" if service.replace else _SUPERVISED,
        folder=line_text(str(service.folder)),
        user=user,
        environment=environment_lines(service.given.told, service.credentials),
        line=_line(service),
        # The next request starts it again.
        restart="" if service.on_demand else _RESTART,
        install="" if service.on_demand else f"\n[Install]\nWantedBy={target}\n",
    )


def _proxy(service: Service, on_demand: OnDemand) -> str:
    return _PROXY.format(
        head=_head(service),
        name=service.name,
        unit=service.unit,
        proxy=on_demand.proxy,
        idle=on_demand.idle,
        socket=service.socket,
        # The same user as the server's: its socket is closed to all others.
        user="DynamicUser=yes\nUser=tsuku-llm\n" if service.system else "",
    )


def _socket(service: Service, on_demand: OnDemand, proxy: str) -> str:
    return _SOCKET.format(
        head=_head(service),
        name=service.name,
        listen=line_text(on_demand.listen),
        proxy=proxy,
    )


def _line(service: Service) -> str:
    """Return the command line, with a reference in place of each secret."""
    line, given = service.line, service.given
    argv = quoted_line(line)
    for place, each in enumerate(given.argv):
        # systemd fills in the value from the file of credentials when it starts the server.
        secret = f"${{{given.variable(place)}}}"
        argv.append(secret if each is None else quoted(each).replace("$", "$$"))
    if service.on_demand:
        # The last address counts; "%t" is for systemd.
        argv += ["--host", service.socket]
    return " ".join(argv)


def environment_lines(told: Mapping[str, str], credentials: Path | None) -> str:
    """Return the lines that give a service these variables, and those of the file."""
    lines = [f"Environment={quoted(f'{name}={value}')}\n" for name, value in told.items()]
    if credentials:
        lines.append(f"EnvironmentFile={file_text(credentials)}\n")
    return "".join(lines)


def quoted_line(words: Sequence[str]) -> list[str]:
    """Return the words of an ``ExecStart=``."""
    # systemd replaces $NAME in arguments; in the program's path, which comes first, "$" is
    # not special.
    return [quoted(words[0]), *(quoted(each).replace("$", "$$") for each in words[1:])]


def environment_file(variables: Mapping[str, Secret]) -> str:
    """Return the text of a file for ``EnvironmentFile=``, in the syntax of systemd.exec(5)."""
    return "".join(
        f'{name}="' + re.sub(r'[\\"$`]', r"\\\g<0>", value.reveal()) + '"\n'
        for name, value in variables.items()
    )


_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
"""Texts that need no quotes."""

_UNSAYABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|\\$|^\s|\s$")
"""What a line without quotes cannot hold: it would end there, go on, or lose blanks."""


def line_text(text: str) -> str:
    """Return a text for options that take one whole line: only ``%`` is special there.

    Raises ``UsageError`` for what systemd cannot be told in such a line.
    """
    if found := _UNSAYABLE.search(text):
        raise _unsayable(text, found[0])
    return text.replace("%", "%%")


def file_text(path: Path) -> str:
    """Return the path of an ``EnvironmentFile=``, which is a pattern. Raises ``UsageError``."""
    return re.sub(r"[*?\[\]\\]", r"\\\g<0>", line_text(str(path)))


def _unsayable(text: str, char: str) -> UsageError:
    return UsageError(
        f"systemd cannot be told {text!r}",
        facts=(f"a line of a unit cannot have {char!r} there",),
        hint="use a file or folder of another name",
    )


def quoted(text: str) -> str:
    """Return a text as systemd.syntax(7) and systemd.unit(5) want it: quoted, ``%`` doubled.

    Raises ``UsageError`` for bytes that are not UTF-8: systemd ignores such a line.
    """
    if found := re.search("[\0\ud800-\udfff]", text):
        raise _unsayable(text, found[0])
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", escaped)
    return f'"{escaped}"'
