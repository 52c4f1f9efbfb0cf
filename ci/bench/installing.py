"""Rows about whole installs: from the command to the installed, flushed, verified version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from support.release_server import ReleaseServer, User

from ci.bench import payload
from ci.bench.downloading import aria2c, curl
from ci.bench.lab import (
    INSTALLED,
    PROGRAM,
    Lab,
    check_installed,
    forget,
    install,
    publish,
    publish_entries,
)
from ci.bench.pairs import Run, Samples
from ci.bench.payload import Packed
from ci.bench.row import Row
from tsuku_publish.packing.pack import Place
from tsuku_publish.packing.tarball import LEVEL

_INSTALL = (PROGRAM, "install")


def _install(user: User, packed: Packed, tag: str) -> Run:
    return Run(
        (*_INSTALL, "--release", tag),
        user.env,
        before=partial(forget, user),
        after=partial(check_installed, user, packed),
    )


def _tarball(lab: Lab, shop: ReleaseServer, name: str, tag: str, **how: Any) -> Run:
    publish(shop, tag, lab.tarball, **how)
    return _install(lab.user(shop, name), lab.tarball, tag)


def _in_pieces(lab: Lab) -> Mapping[str, Run]:
    return {
        "ours": _tarball(lab, lab.near, "near", "b101"),
        "yardstick": curl(lab, lab.near, lab.tarball, "archives"),
    }


def _whole(lab: Lab) -> Mapping[str, Run]:
    return {
        "ours": _tarball(lab, lab.near, "near-whole", "b102", pieces=False),
        "yardstick": curl(lab, lab.near, lab.tarball, "archives"),
    }


def _far(lab: Lab) -> Mapping[str, Run]:
    return {
        "ours": _tarball(lab, lab.far, "far", "b103", folder="capped"),
        "yardstick": aria2c(lab, lab.far, lab.tarball, "capped"),
    }


def _update(lab: Lab) -> Mapping[str, Run]:
    """Update between two releases packed as ``tsuku-publish pack`` does.

    Three large libraries stay the same.
    """
    after = payload.next_build(lab.build, lab.folder / "next")
    nginx = lab.near.nginx
    place = Place(nginx.root / "archives", f"{nginx.url}/archives/")
    for tag, tree in (("b105", lab.build), ("b106", after)):
        publish_entries(lab.near, tag, payload.entries(tree, place))
    user = lab.user(lab.near, "updater")
    install(user, "b105")
    whole = payload.pack(after, lab.folder / "next.tar.gz", level=LEVEL)
    return {
        "ours": Run(
            (*_INSTALL, "--release", "b106"),
            user.env,
            before=partial(_back, user),
            after=partial(check_installed, user, whole),
        ),
        "yardstick": curl(lab, lab.near, whole, "archives"),
    }


def _back(user: User) -> None:
    """Return to the state in which only the old release is installed."""
    if len(user.versions()) > 1:
        user.run("use", "b105")
        user.run("uninstall", "b106")


def _again(lab: Lab) -> Mapping[str, Run]:
    user = lab.installed
    return {"ours": Run((*_INSTALL, "--release", INSTALLED), user.env)}


def _memory(lab: Lab) -> Mapping[str, Run]:
    tarball = _tarball(lab, lab.near, "near", "b101")
    publish(lab.near, "b104", lab.zipfile)
    zip_ = _install(lab.user(lab.near, "near-zip"), lab.zipfile, "b104")
    return {"tar.gz": replace(tarball, watched=True), "zip": replace(zip_, watched=True)}


def megabytes(samples: Samples) -> float:
    """Return the highest peak of all runs."""
    return max(sample.memory for taken in samples.of.values() for sample in taken) / 1e6


def seconds(samples: Samples) -> float:
    """Return our own median seconds."""
    return samples.median("ours")


ROWS = (
    Row("G11", "time to installed: a CUDA build at 100 MB/s, in pieces", "curl's download alone",
        1.10, _in_pieces),
    Row("G11 whole", "the same, the manifest having no pieces", "curl's download alone",
        1.45, _whole),
    Row("G12", "the same at 50 ms and 20 MB/s per connection", "aria2c -x8, download alone",
        1.05, _far),
    Row("G13", "update where 20 % of the bytes changed, packed by file", "curl's full download",
        0.30, _update),
    Row("G14", "install of what is installed", "none: seconds", 0.35, _again, seconds, " s", 15),
    Row("G16", "peak memory of an install of 736 MB", "none: MB", 80, _memory, megabytes, " MB", 2),
)  # fmt: skip
