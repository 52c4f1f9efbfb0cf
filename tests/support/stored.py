"""Small builds that a store can hold, with receipts that are right about them."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import ArtifactRecord, Receipt, version_id
from tsuku_llm.store.store import Store

FILES = {
    "llama-server": b"#!/bin/sh\necho server\necho listening on :1 >&2\n",
    "libggml-base.so.0.9.5": b"base" * 500,
    "libggml-cpu-haswell.so": b"haswell" * 300,
    "share/licenses/LICENSE": b"MIT\n",
}
LINKS = {"libggml-base.so": "libggml-base.so.0", "libggml-base.so.0": "libggml-base.so.0.9.5"}


def make_receipt(
    release: str = "b100",
    variant: str = "cpu",
    files: dict[str, bytes] = FILES,
    links: dict[str, str] = LINKS,
    **changes: object,
) -> Receipt:
    """A receipt of a build with these files."""
    artifact = sha256(release.encode() + variant.encode() + b"".join(files.values())).hexdigest()
    fields: dict[str, object] = {
        "id": version_id(release, variant, [artifact]),
        "release": release,
        "sequence": int(release[1:]),
        "version": "0.1.0",
        "channel": "stable",
        "repository": "official",
        "publisher": "ggml-org",
        "variant": variant,
        "backend": "cpu",
        "server": "llama-server",
        "arguments": (),
        "device": None,
        "requested": "auto",
        "detected": ("vulkan", "cpu"),
        "line": f"requested=auto detected=[vulkan,cpu] selected={variant}",
        "reasons": {"cuda-13.4": "no CUDA driver"},
        "hardware": {"platform": "linux-amd64", "gpus": []},
        "artifacts": (ArtifactRecord("https://example.org/build.tar.gz", artifact, 1234),),
        "files": tuple(
            FileEntry(path, len(content), sha256(content).hexdigest(), path.startswith("llama-"))
            for path, content in files.items()
        ),
        "links": tuple(LinkEntry(path, target) for path, target in links.items()),
        "installed_at": "2026-11-20T12:00:00Z",
        "tsuku_llm": "0.1.0",
    }
    return Receipt(**{**fields, **changes})  # type: ignore[arg-type]


def fill(tree: Path, files: dict[str, bytes] = FILES, links: dict[str, str] = LINKS) -> None:
    """Unpack a build into a tree."""
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    for path, target in links.items():
        (tree / path).symlink_to(target)


def install(
    store: Store,
    release: str = "b100",
    variant: str = "cpu",
    files: dict[str, bytes] = FILES,
    links: dict[str, str] = LINKS,
    *,
    activate: bool = True,
    sealed: bool = False,
    **changes: object,
) -> Installed:
    """Put a build into a store, as an install does.

    Many tests damage it then, which a build refuses to all but root. So it is opened for another
    user, unless it shall stay ``sealed``.
    """
    with store.staging() as staging:
        with disk_errors("unpacking", staging.tree):
            fill(staging.tree, files, links)
        receipt = make_receipt(release, variant, files, links, **changes)
        installed = store.commit(staging, receipt)
    if not sealed and not os.access(installed.tree, os.W_OK):
        for path in (installed.tree, *installed.tree.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)
        store.check(installed)  # the files have new change times
    if activate:
        store.activate(installed)
    return installed


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Every name below a folder with its mode and content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = sha256(path.read_bytes()).hexdigest()
        found[path.relative_to(folder).as_posix()] = (status.st_mode, content)
    return found
