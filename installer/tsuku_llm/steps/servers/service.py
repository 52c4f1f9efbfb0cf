"""What a service needs: the GPU's groups, systemd's proxy, secrets that its unit does not show.

Other users may be able to read a unit, and people copy and paste it. So secrets go through the
server's environment (``launch.plan.secret_arguments``). For an option without a variable, systemd
replaces an argument by a variable's value (systemd.service(5), "command lines").
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.ground.safe_text import Secret, has_secret, shell_word
from tsuku_llm.instances.record import checked_name
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.secret_arguments import VARIABLES, handed_over, parted

_USUAL = ("render", "video")
"""The groups that udev's own rules give to GPUs."""

_NODES = ("dri/renderD*", "kfd", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "accel/accel*")

_PROXIES = ("/usr/lib/systemd/systemd-socket-proxyd", "/lib/systemd/systemd-socket-proxyd")
"""Where systemd has its proxy: the second place is that of systems with a separate /lib."""

_OWN = re.compile(r"TSUKU_HOME|TSUKU_LLM_[A-Z_]+")


def device_groups(dev: Path = Path("/dev"), groups: Path = Path("/etc/group")) -> tuple[str, ...]:
    """Return the groups that may use this machine's GPUs, of those that exist."""
    names: dict[int, str] = {}
    with suppress(OSError):
        for line in kernel_text(groups).splitlines():
            name, _, rest = line.partition(":")
            number = rest.split(":")[1:2]
            if number and number[0].isdecimal():
                names[int(number[0])] = name
    # The usual ones also if there is no GPU yet: its driver may be loaded later.
    found = {name for name in names.values() if name in _USUAL}
    for pattern in _NODES:
        for node in dev.glob(pattern):
            with suppress(OSError):
                state = node.stat()
                # Group 0 is root's: no service should be in it. NVIDIA's nodes are open to all.
                if not state.st_mode & stat.S_IWOTH and state.st_gid and state.st_gid in names:
                    found.add(names[state.st_gid])
    return tuple(sorted(found))


def proxy_program() -> str:
    """Return the path of systemd-socket-proxyd, or its usual one if this machine lacks it."""
    return next(filter(os.path.exists, _PROXIES), _PROXIES[0])


def listen_stream(address: ServerAddress) -> str:
    """Return an address as ``ListenStream=`` has it. Raises UsageError."""
    if address.others:
        raise UsageError(
            "--on-demand listens at one address", hint="give one address: -- --host ADDRESS"
        )
    host = "127.0.0.1" if address.host == "localhost" else address.host
    if address.is_unix and os.path.isabs(host):
        return host
    if address.port == 0:
        raise UsageError(
            "--on-demand needs a port that clients know", hint="choose one: -- --port PORT"
        )
    # systemd takes no names: it listens before there is a network.
    if not host.replace(".", "").isdecimal() and ":" not in host:
        raise UsageError(
            f"--on-demand cannot listen at {host!r}",
            hint="give an IP address, or the absolute path of a socket: -- --host ADDRESS",
        )
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


def closed_to_others(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield each path, or the first folder above it, that other users cannot read or enter.

    For a path that is a link, or below one, this counts for both ways to it.
    """
    for path in paths:
        real = path.resolve()
        for part in (*reversed(path.parents), *reversed(real.parents), real):
            with suppress(OSError):
                mode = part.stat().st_mode
                needed = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
                if not mode & needed:
                    yield part
                    break


def write_units(
    folder: Path, texts: Mapping[str, str], encoding: str = "utf-8"
) -> tuple[Path, ...]:
    """Write each unit into the folder; return the files.

    Raises UsageError for the name of a file, and StoreError.
    """
    # In a folder called "tsuku-llm.service" no systemd would find the unit.
    as_file = folder.suffix in {Path(name).suffix for name in texts}
    if as_file or (folder.exists() and not folder.is_dir()):
        such = f", such as {shell_word(str(folder.parent))}" if as_file else ""
        raise UsageError(
            f"--output takes a folder, and {folder.name} is the name of a file",
            hint=f"name a folder{such}; the files in it get their own names",
        )
    with disk_errors("writing the units", folder):
        make_folder(folder)
        for name, text in texts.items():
            replace_file(folder / name, text.encode(encoding, "surrogateescape"), mode=0o644)
    return tuple(folder / name for name in texts)


class Handover(NamedTuple):
    """The parts of a start: what a unit may show, and the secrets that it must not show.

    ``argv`` are the server's arguments, without secrets. None stands for the value of the variable
    ``TSUKU_UNIT_WORD_N``, where N is the argument's position. ``told`` are variables that the
    unit may set, ``secret`` those that belong into a file that only the user can read.
    """

    argv: tuple[str | None, ...]
    told: Mapping[str, str]
    secret: Mapping[str, Secret]

    @staticmethod
    def variable(place: int) -> str:
        """Return the name of the variable whose value replaces the secret argument at ``place``."""
        return f"TSUKU_UNIT_WORD_{place}"


def handover(argv: Sequence[str], environ: Mapping[str, str]) -> Handover:
    """Separate the secrets of a start from what may be shown.

    ``argv`` are the server's arguments. From the environment this takes our settings, and the
    variables from which llama.cpp reads keys.
    """
    own = {name: environ[name] for name in sorted(environ) if _OWN.fullmatch(name)}
    # A URL in our settings, for example a mirror's, may hold a password or a token.
    secret = {name: Secret(value) for name, value in own.items() if has_secret(value)}
    told = {name: value for name, value in own.items() if name not in secret}
    secret |= {name: Secret(environ[name]) for name in VARIABLES if environ.get(name)}
    moved = handed_over(argv)
    secret |= moved.secrets
    kept: list[str | None] = []
    for option, value in parted(moved.argv):
        if value is None:
            kept.append(option)
        else:
            kept += [option, None] if option else [None]
            secret[Handover.variable(len(kept) - 1)] = Secret(value)
    return Handover(tuple(kept), told, secret)


def keep_credentials(state: Path, name: str, secrets: Mapping[str, Secret], content: str) -> Path:
    """Write a unit's ``secrets`` into a file that only this user can read; return its path.

    Raises UsageError for characters that systemd drops: the server would start without its key.
    """
    for variable, value in secrets.items():
        if not value.reveal().isprintable():
            raise UsageError(
                f"{variable} has a character that systemd does not pass on",
                hint="take another key, or let the server read a file: --api-key-file FILE",
            )
    folder = state / "credentials"
    path = folder / f"{checked_name(name)}.env"
    # Close the folder before the file is in it: other users can never open the file.
    make_folder(folder, private=True)
    with disk_errors("keeping the credentials of a unit", folder):
        replace_file(path, content.encode("utf-8"), mode=0o600)
    return path
