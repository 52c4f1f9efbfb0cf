"""The fleet: which machine has what hardware, and the variant that a person expects there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ci.fleetlab.network import HOME, MIRROR, MIRROR_OUTSIDE, Node, Wish, run, running

ROOT = Path(__file__).parents[2]
SNAPSHOTS = ROOT / "tests" / "snapshots"
COMPANY = "company"
"""The name of the company's repository."""

STORE = f"{HOME}/.local/share/tsuku-llm"
SMALL_DISK = "6m"
"""Less than an archive and what is unpacked from it."""


class Expected(NamedTuple):
    """A host of the fleet: its recorded hardware, the right variant, its ring; written by hand.

    ``program`` says from what the role ``tool`` installs: a ``bundle``, or a folder of ``wheels``.
    The others have the control node's program, as an install takes a minute of a busy processor.
    """

    name: str
    machine: str
    variant: str
    ring: str
    program: str = ""


HOSTS = (
    # A driver for CUDA 13.4, no toolkit.
    Expected("smith", "nvidia-driver-without-toolkit", "cuda-13.4", "all", "bundle"),
    # Driver 575 is too old for CUDA 13.4.
    Expected("elder", "rtx-5080-driver-575", "cuda-12.8", "canary"),
    Expected("halo", "strix-halo-gfx1151", "rocm-10.0", "early", "wheels"),
    Expected("arc", "intel-arc-b580", "vulkan", "all"),
    Expected("plain", "debian-12-vm-no-gpu", "cpu", "all"),
)
DUO = Expected("duo", "two-h200", "cuda-12.8", "all")
"""Its link is pulled while it downloads. Only the build for CUDA 12.8 has PTX for it."""

VETERAN = Expected("veteran", "a100-driver-550-without-vulkan", "cpu", "all")
"""Its disk is too small at first. Its driver is too old for every build for CUDA."""

FRAIL = (DUO, VETERAN)

_SSHD = """\
ListenAddress {admin}
HostKey {home}/.sshd/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
Subsystem sftp internal-sftp
SetEnv {env}
"""

_SSH = """\
Host *
    User root
    IdentityFile {home}/.ssh/key
    UserKnownHostsFile {home}/.ssh/known_hosts
    BatchMode yes
    ConnectTimeout 60
    ControlMaster auto
    ControlPath /run/ssh-%h
    ControlPersist yes
"""


@dataclass(frozen=True)
class Fleet:
    """The running machines; commands go from the control node to a host by ssh."""

    control: Node
    mirror: Node
    hosts: Mapping[str, Node]

    def ssh(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as a person on the control node does."""
        return self.on_control("ssh", "-n", host, shlex.join(words))

    def on_control(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the control node."""
        settings = {
            "HOME": HOME,
            "PATH": f"{HOME}/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            **env,
        }
        return subprocess.run(
            self.control.enter(*words),
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def address(network: str, number: int) -> str:
    """Return the address of a machine in one of the two networks of the fleet."""
    return f"10.{'77' if network == 'data' else '79'}.0.{number}"


@contextmanager
def fleet(folder: Path, cgroups: Sequence[Path], program: Path) -> Iterator[Fleet]:
    """Run the control node, the mirror's machine and all hosts.

    ``program`` is theirs, except where a play installs it.
    """
    numbers = {each.name: 10 + at for at, each in enumerate((*HOSTS, *FRAIL))}
    wishes = [
        Wish("control", {"admin": address("admin", 1)}),
        Wish("mirror", {"admin": address("admin", 2), "data": MIRROR, "outside": MIRROR_OUTSIDE}),
    ]
    for name, number in numbers.items():
        links = {network: address(network, number) for network in ("admin", "data")}
        disk = {"disk": STORE, "disk_size": SMALL_DISK} if name == VETERAN.name else {}
        wishes.append(Wish(name, links, **disk))
    hosts = {each.name: each for each in (*HOSTS, *FRAIL)}
    _keys(folder, wishes)
    for wish in wishes:
        home, host = folder / wish.name / "home", hosts.get(wish.name)
        _furnish(home, wish)
        if host:
            shutil.copyfile(SNAPSHOTS / f"{host.machine}.json", home / "machine.json")
        if host is None or not host.program:
            (home / ".local" / "bin").mkdir(parents=True)
            (home / ".local" / "bin" / "tsuku-llm").symlink_to(program)
    with ExitStack() as stack:
        nodes = {
            wish.name: stack.enter_context(running(wish, folder / wish.name, cgroups))
            for wish in wishes
        }
        yield Fleet(nodes.pop("control"), nodes.pop("mirror"), nodes)


def _keys(folder: Path, wishes: Sequence[Wish]) -> None:
    """Make the operator's key and each machine's; the control node knows them all."""
    ssh = folder / "control" / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    _key(ssh / "key")
    (ssh / "config").write_text(_SSH.format(home=HOME), "utf-8")
    known = []
    for wish in wishes:
        home = folder / wish.name / "home"
        (home / ".ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / ".sshd").mkdir(mode=0o700)
        shutil.copyfile(ssh / "key.pub", home / ".ssh" / "authorized_keys")
        _key(home / ".sshd" / "host_key")
        kind, text, *_ = (home / ".sshd" / "host_key.pub").read_text("ascii").split()
        known.append(f"{wish.name},{wish.links['admin']} {kind} {text}\n")
    (ssh / "known_hosts").write_text("".join(known), "ascii")
    names = "".join(f"{wish.links['admin']} {wish.name}\n" for wish in wishes)
    for wish in wishes:
        (folder / wish.name / "hosts").write_text(f"127.0.0.1 localhost\n{names}", "ascii")


def _key(path: Path) -> None:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))


def _furnish(home: Path, wish: Wish) -> None:
    """Put into a home what its owner would: a model, sshd's settings."""
    (home / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    settings = {
        "PATH": f"{HOME}/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "XDG_RUNTIME_DIR": "/run/user/0",
        "SSL_CERT_FILE": f"{HOME}/ca.pem",
        "TSUKU_LLM_UPDATE_CHECK": "false",
        # The lab does not use this machine's pip configuration.
        "PIP_CONFIG_FILE": "/dev/null",
    }
    if "data" in wish.links and wish.name != "mirror":
        settings["TSUKU_LLM_FAKE_HARDWARE"] = f"{HOME}/machine.json"
    env = " ".join(f"{name}={value}" for name, value in settings.items())
    config = _SSHD.format(admin=wish.links["admin"], home=HOME, env=env)
    (home / ".sshd" / "config").write_text(config, "utf-8")
