"""Rows about files: hashing them again, and unpacking them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ci.bench.lab import PROGRAM, Lab, check_tree
from ci.bench.pairs import Run
from ci.bench.payload import Packed
from ci.bench.row import Row

WORK = (sys.executable, "-m", "ci.bench.work")


def _rehash(lab: Lab) -> Mapping[str, Run]:
    lab.require("openssl")
    user = lab.installed
    files = sorted(str(path) for path in lab.build.iterdir())
    return {
        "ours": Run((PROGRAM, "verify"), user.env),
        "yardstick": Run(("openssl", "dgst", "-sha256", *files)),
    }


def _unpack(
    lab: Lab, packed: Packed, inflater: str, tool: Callable[[Path], tuple[str, ...]]
) -> Mapping[str, Run]:
    """Compare unpacking: ours hashes every file, the tool none. Neither flushes to the disk."""
    ours, theirs = lab.folder / "unpacked", lab.folder / "unpacked-by-tool"
    command = (*WORK, "unpack", inflater, packed.format, packed.root, str(packed.path), str(ours))
    top = theirs / packed.root
    return {
        "ours": Run(command, before=partial(_empty, ours), after=partial(check_tree, ours, packed)),
        "yardstick": Run(
            tool(theirs), before=partial(_empty, theirs), after=partial(check_tree, top, packed)
        ),
    }


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _tarball(inflater: str, lab: Lab) -> Mapping[str, Run]:
    lab.require("tar")
    archive = lab.tarball
    return _unpack(
        lab, archive, inflater, lambda to: ("tar", "xzf", str(archive.path), "-C", str(to))
    )


def _zipfile(inflater: str, lab: Lab) -> Mapping[str, Run]:
    lab.require("unzip")
    archive = lab.zipfile
    return _unpack(
        lab, archive, inflater, lambda to: ("unzip", "-q", str(archive.path), "-d", str(to))
    )


ROWS = (
    Row("G4", "full re-hash of an installed 736 MB tree", "openssl dgst -sha256", 0.65, _rehash,
        rounds=9),
    Row("G9", "unpack tar.gz, every file hashed", "tar xzf", 0.70, partial(_tarball, "zlib"),
        rounds=3),
    Row("G9 fast", "the same with `tsuku-llm[fast]`", "tar xzf", 0.70, partial(_tarball, "isal"),
        rounds=3),
    Row("G10", "unpack zip, every file hashed", "unzip", 0.55, partial(_zipfile, "zlib"),
        rounds=3),
    Row("G10 fast", "the same with `tsuku-llm[fast]`", "unzip", 0.55, partial(_zipfile, "isal"),
        rounds=3),
)  # fmt: skip
