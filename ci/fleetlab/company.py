"""The company's releases: signed and served outside, and copied to the mirror."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS, Packed
from support.folder_shop import FolderShop
from support.machines import linux_variants
from support.nginx import Nginx, serving
from support.own_publisher import OwnPublisher
from support.repository import release_document

from ci.fleetlab.fleet import COMPANY, DUO, Fleet
from ci.fleetlab.network import MIRROR, OUTSIDE, listening
from ci.fleetlab.plays import Play, play

PADDING = 4 << 20
GOOD = ("speed 1000 100", "listen")
DEAD = ("err the flux is open", "exit 42")
_PREFERENCE = ["cuda", "rocm", "vulkan", "cpu"]

_DEVICES = {
    "cpu": NO_DEVICE_STEPS,
    "vulkan": VULKAN_STEPS,
    "cuda": ("out Available devices:", "out   CUDA0: a card (16000 MiB, 15000 MiB free)"),
    "rocm": ("out Available devices:", "out   ROCm0: a card (16000 MiB, 15000 MiB free)"),
}

# The client whose link is pulled gets its archives so slowly that it is still loading then.
_BRAKE = """\
set $brake "";
if ($remote_addr = {address}) {{ set $brake client; }}
if (-f {file}) {{ set $brake "$brake-on"; }}
if ($brake = client-on) {{ set $limit_rate 100k; }}
"""


def offered() -> dict[str, dict[str, Any]]:
    """Return the variants of each release, with upstream's requirements, and an older ROCm."""
    variants = linux_variants()
    rocm = {"runtime": "7.0", "gfx": ["gfx1030", "gfx1100", "gfx1151"]}
    variants["rocm-10.0"]["requires"]["rocm"] = rocm
    return variants


def release(tag: str, variants: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a release of the company, which prefers the vendors' APIs."""
    platform = {
        "default": "cpu",
        "preference": {"portable": _PREFERENCE, "native": _PREFERENCE},
        "variants": variants,
    }
    return release_document(tag, publisher=COMPANY, platforms={"linux-amd64": platform})


class Outside(FolderShop):
    """The builds, with the addresses that they have outside."""

    def url(self, packed: Packed, folder: str = "archives") -> str:
        """Return where an archive is downloaded from."""
        return f"https://{OUTSIDE}/{folder}/{packed.path.name}"


@dataclass
class Company:
    """The publisher, its web server outside, and the mirror's."""

    publisher: OwnPublisher
    shop: Outside
    outside: Nginx
    mirror: Nginx
    fleet: Fleet
    brake: Path

    def release_brake(self) -> None:
        """Let the slow client download as fast as the others."""
        self.brake.unlink()

    def build(self, tag: str, serve: Sequence[str] = GOOD) -> None:
        """Make a release with a build for each backend; its servers do as told."""
        variants: dict[str, Any] = {}
        for name, facts in offered().items():
            backend, requires = facts["backend"], facts["requires"]
            steps = {"devices": _DEVICES[backend], "serve": serve}
            packed = self.shop.stand_in(f"{tag}-{name}", padding=PADDING, **steps)
            variants[name] = self.shop.variant(packed, backend=backend, requires=requires)
        self._write(release(tag, variants))

    def _write(self, document: dict[str, Any]) -> None:
        folder = self.publisher.data / "releases"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{document['release']}.json").write_text(json.dumps(document), "utf-8")

    def sign(self, **rings: list[str]) -> Play:
        """Sign which releases each ring has, publish that, and let the mirror fetch it."""
        self.publisher.channels(**rings)
        self.publisher.publish()
        if not (self.mirror.root / "llm").exists():
            self._introduce()
        return self.copy()

    def copy(self) -> Play:
        """Let the mirror's machine copy what is new outside."""
        ended = play(self.fleet, "mirror.yml", "mirror")
        if ended.code:
            raise RuntimeError(f"the mirror was not made: {ended.text}")
        return ended

    def _introduce(self) -> None:
        """Give every machine what it trusts."""
        root = (self.publisher.signed / "metadata" / "1.root.json").read_bytes()
        authorities = [nginx.authority.read_bytes() for nginx in (self.outside, self.mirror)]
        for node in (self.fleet.mirror, self.fleet.control, *self.fleet.hosts.values()):
            (node.home / "root.json").write_bytes(root)
            (node.home / "ca.pem").write_bytes(b"".join(authorities))

    def asked(self) -> int:
        """Return how many requests for archives the mirror has answered."""
        return sum("/sha256/" in line.path for line in self.mirror.requests())

    def crossed(self) -> Counter[str]:
        """Return how often each archive was asked for outside."""
        lines = self.outside.requests()
        return Counter(
            line.path.rpartition("/")[2] for line in lines if line.path.startswith("/archives/")
        )


@contextmanager
def company(folder: Path, fleet: Fleet) -> Iterator[Company]:
    """Found the company, and run both web servers at the usual ports."""
    shop = Outside(folder / "shop")
    publisher = OwnPublisher(folder / "publisher", shop, COMPANY)
    publisher.home.mkdir()
    www = folder / "www"
    www.mkdir()
    (www / "archives").symlink_to(shop.root / "archives")
    (www / COMPANY).symlink_to(publisher.served)
    mirrored = fleet.mirror.home / "www"
    mirrored.mkdir()
    brake = folder / "brake"
    brake.touch()
    slow = _BRAKE.format(address=fleet.hosts[DUO.name].addresses["data"], file=brake)
    with ExitStack() as stack:
        ours = [stack.enter_context(socket.create_server((OUTSIDE, port))) for port in (80, 443)]
        theirs = [stack.enter_context(listening(fleet.mirror, MIRROR, port)) for port in (80, 443)]
        outside = stack.enter_context(serving(www, folder / "outside", "", ours))
        mirror = stack.enter_context(serving(mirrored, folder / "nginx", slow, theirs))
        yield Company(publisher, shop, outside, mirror, fleet, brake)
