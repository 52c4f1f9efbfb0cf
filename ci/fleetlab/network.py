"""Machines that are namespaces of one machine, and the links between them.

All of them live in a network, mount and PID namespace of the lab's own (``ci/fleetlab/__main__``):
when its first process ends, the kernel removes them and ends every process in them.

    outside 10.78.0.1 ─── mirror ─── data 10.77.0.0/24 ─── the hosts
                             control ─── admin 10.79.0.0/24 ─── the mirror, the hosts

The outside is the lab's own network. Nothing forwards packets, and no host has a default route.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

OUTSIDE, MIRROR_OUTSIDE, MIRROR = "10.78.0.1", "10.78.0.2", "10.77.0.1"
HOME = "/srv"
"""The home of root on every machine: Debian ships this folder empty."""

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <linux/sched.h>

# The first process of a machine. It waits for its links, which come from outside. The last mount
# hides the folder of the lab, and with it what the other machines have.
_BOOT = """\
set -e
read -r _
for folder in $CGROUPS; do echo $$ > "$folder/cgroup.procs"; done
hostname "$NAME"
echo 0 > /proc/sys/net/ipv4/ip_forward
ip link set lo up
for link in $LINKS; do
    ip address add "${link#*=}" dev "${link%%=*}"
    ip link set "${link%%=*}" up
done
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
mount -t tmpfs tmpfs /var/lib/systemd
mkdir /var/lib/systemd/linger && touch /var/lib/systemd/linger/root
mount --bind "$FOLDER/passwd" /etc/passwd
mount --bind "$FOLDER/hosts" /etc/hosts
mount --bind "$FOLDER/resolv.conf" /etc/resolv.conf
mount --bind "$FOLDER/home" "$HOME"
[ -z "$DISK" ] || { mkdir -p "$DISK"; mount -t tmpfs -o size="$DISK_SIZE" tmpfs "$DISK"; }
mount --bind "$FOLDER/tmp" /tmp
cd "$HOME"
"""

# The shell stays the first process: it reaps what servers leave behind. A user's manager of
# systemd wants a system that was started by systemd; /run is this machine's own. There is no
# logind, so the user lingers by a file.
_SERVICES = """\
/usr/lib/systemd/systemd --user --unit=basic.target &
until systemctl --user is-active --quiet basic.target; do kill -0 $!; done
/usr/sbin/sshd -D -e -f "$HOME/.sshd/config" &
until grep -q ':0016 .* 0A ' /proc/net/tcp; do kill -0 $!; done
echo up
wait
"""


@dataclass(frozen=True)
class Node:
    """A running machine: ``pid`` is the first process in its namespaces."""

    name: str
    folder: Path
    addresses: Mapping[str, str]
    pid: int

    @property
    def home(self) -> Path:
        """Its home, seen from the lab."""
        return self.folder / "home"

    def enter(self, *words: str) -> list[str]:
        """Return the command line that runs a program there, as the machine's root."""
        line = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--net", "--pid"]
        return [*line, "sh", "-c", 'cd; exec "$@"', "sh", *words]

    def link(self, device: str, state: str) -> None:
        """Set one of its links ``up`` or ``down``, as a cable that is pulled."""
        run("nsenter", "--target", str(self.pid), "--net", "ip", "link", "set", device, state)


@dataclass
class Wish:
    """A machine to make: its links, and the folder (with its size) that is a small disk."""

    name: str
    links: Mapping[str, str]
    disk: str = ""
    disk_size: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def run(*words: str) -> None:
    """Run a tool of the system that must succeed."""
    subprocess.run(words, check=True)


def make_switches() -> None:
    """Give the lab its own address on the way to the mirror, and the two networks."""
    run("ip", "link", "set", "lo", "up")
    for name in ("data", "admin"):
        run("ip", "link", "add", name, "type", "bridge")
        run("ip", "link", "set", name, "up")
    run("ip", "link", "add", "outside", "type", "veth", "peer", "name", "to-mirror")
    run("ip", "address", "add", f"{OUTSIDE}/24", "dev", "outside")
    run("ip", "link", "set", "outside", "up")
    # For the questions of the lab itself: the mirror's web server listens on the hosts' side.
    run("ip", "route", "add", f"{MIRROR}/32", "via", MIRROR_OUTSIDE)


@contextmanager
def running(wish: Wish, folder: Path, cgroups: Sequence[Path]) -> Iterator[Node]:
    """Run a machine; it and its processes end with the block."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "passwd").write_text(_passwd(), "utf-8")
    (folder / "resolv.conf").write_text("", "utf-8")
    own = [each / wish.name for each in cgroups]
    for each in own:
        each.mkdir(exist_ok=True)
    settings = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": HOME,
        "NAME": wish.name,
        "FOLDER": str(folder),
        "LINKS": " ".join(f"{name}={address}/24" for name, address in wish.links.items()),
        "CGROUPS": " ".join(map(str, own)),
        "XDG_RUNTIME_DIR": "/run/user/0",
        "DISK": wish.disk,
        "DISK_SIZE": wish.disk_size,
    }
    spaces = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", _BOOT + _SERVICES],
            env=settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        pid = _first_process(child)
        for device in wish.links:
            _plug(device, wish.name, pid)
        links, told = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        links.write(b"\n")
        links.flush()
        if told.readline() != b"up\n":
            raise RuntimeError(f"{wish.name} did not start: {(folder / 'log').read_text()}")
        yield Node(wish.name, folder, dict(wish.links), pid)
    finally:
        child.kill()
        child.wait()


def _passwd() -> str:
    """Return this machine's users; the home of root is that of the lab's machines."""
    lines = Path("/etc/passwd").read_text("utf-8").splitlines()
    return "".join(
        f"root:x:0:0:root:{HOME}:/bin/bash\n" if line.startswith("root:") else f"{line}\n"
        for line in lines
    )


def _first_process(child: subprocess.Popen[bytes]) -> int:
    """Return the process that ``unshare`` forks; wait until it is there."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    while not (found := children.read_text("ascii").split()):
        if child.poll() is not None:
            raise RuntimeError("no namespaces can be made here")
        os.sched_yield()
    return int(found[0])


def _plug(device: str, name: str, pid: int) -> None:
    """Connect a machine to one of the networks; hosts cannot talk to each other there."""
    if device == "outside":
        run("ip", "link", "set", "to-mirror", "netns", str(pid), "name", device)
        return
    ours = f"{name}-{device[0]}"
    peer = ["peer", "name", device, "netns", str(pid)]
    run("ip", "link", "add", ours, "type", "veth", *peer)
    run("ip", "link", "set", ours, "master", device)
    if name not in ("mirror", "control"):
        run("ip", "link", "set", ours, "type", "bridge_slave", "isolated", "on")
    run("ip", "link", "set", ours, "up")


def listening(node: Node, address: str, port: int) -> socket.socket:
    """Return a socket of this process that listens in the network of a machine."""
    made: list[socket.socket] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def inside() -> None:
        # Only this thread changes its network, and it ends with it.
        with Path(f"/proc/{node.pid}/ns/net").open("rb") as network:
            if libc.setns(network.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        made.append(socket.create_server((address, port), backlog=128))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    return made[0]
