"""Rows about the real server with a tiny model: the time before its first healthy answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import partial

from support.builds import pack_real
from support.release_server import User
from support.tiny_model import write_tiny_model

from ci.bench.lab import PROGRAM, Lab, Missing, install
from ci.bench.pairs import Run, Samples
from ci.bench.row import Row
from ci.bench.unpacking import WORK

# On the CPU, so that the figures do not depend on this machine's GPU.
_ON_THE_CPU = ("--device", "none")


def _owner(lab: Lab) -> User:
    """Return a user who has installed the real build, downloaded through the package index."""
    shop = lab.loopback
    if not (lab.folder / "real").exists():
        try:
            packed = pack_real(lab.fresh("real"))
        except subprocess.CalledProcessError as error:
            raise Missing("the real build cannot be had from the package index") from error
        for each in packed:
            each.path.rename(shop.nginx.root / "archives" / each.path.name)
        shop.publish("b300", {"cpu": shop.variant(*packed, arguments=list(_ON_THE_CPU))})
        install(lab.user(shop, "launcher"), "b300")
    return lab.user(shop, "launcher")


def _until_healthy(how: tuple[str, ...], lab: Lab) -> Mapping[str, Run]:
    user = _owner(lab)
    model = write_tiny_model(lab.folder / "tiny.gguf")
    server = user.run("which").stdout.strip()
    arguments = ("-m", str(model))
    return {
        "ours": _healthy(user, PROGRAM, "serve", *how, "--", *arguments),
        "yardstick": _healthy(user, server, *_ON_THE_CPU, *arguments),
    }


def _healthy(user: User, *command: str) -> Run:
    return Run((*WORK, "healthy", *command), user.env, reports=True)


def added(samples: Samples) -> float:
    """Return the milliseconds that our program adds."""
    return (samples.median("ours") - samples.median("yardstick")) * 1000


ROWS = (
    Row(
        "L1", "`serve --exec` until `/health`, the real server", "the server itself",
        None, partial(_until_healthy, ("--exec",)), added, " ms more", 9,
    ),
    Row(
        "L2", "`serve` until `/health`, the real server", "the server itself",
        None, partial(_until_healthy, ()), added, " ms more", 9,
    ),
)  # fmt: skip
