"""What this machine has for a service: the GPU's groups, systemd's proxy, what others can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.plan.addresses import ServerAddress

_USUAL = ("render", "video")
"""The groups that udev's own rules give to GPUs."""

_NODES = ("dri/renderD*", "kfd", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "accel/accel*")

_PROXIES = ("/usr/lib/systemd/systemd-socket-proxyd", "/lib/systemd/systemd-socket-proxyd")
"""Where systemd has its proxy: the second place is that of systems with a separate /lib."""


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
    """Write each unit into the folder; return the files. Raises StoreError."""
    with disk_errors("writing the units", folder):
        make_folder(folder)
        for name, text in texts.items():
            replace_file(folder / name, text.encode(encoding, "surrogateescape"), mode=0o644)
    return tuple(folder / name for name in texts)
