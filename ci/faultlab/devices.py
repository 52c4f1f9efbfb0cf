"""Rows about real disks: C07 on a block device that loses power, C03 and A26 on a small one.

The block device is an ext4 in a file; what the file system keeps only in memory is not in the file.
A copy of the file, taken while the program is held after a system call, is the disk after a power
loss at that moment. Mounting the copy replays its journal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from support.builds import pack_tar
from support.release_server import is_root
from support.tools import require_tool
from support.waiting import Standstill

from ci.faultlab.bench import Bench, Home, copy_tree
from ci.faultlab.operations import Operation, operations
from ci.faultlab.turns import build_turns, taking_turns
from ci.faultlab.verdict import Tally

_SIZE = 48 << 20
_LAZY = "loop,data=writeback,noauto_da_alloc,commit=300"
"""ext4 may write names without their data, and flushes nothing unless the program asks."""

_WITHIN = 120.0
"""Seconds for a system command such as mount."""

_DISK = 4 << 20
_UNPACKED = 1_500_000
_STEP = 64 << 10
_NO_SPACE = 6


def lose_power(bench: Bench, _ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show C07: after every call of every command; with sampling, of an update alone."""
    _require_root()
    turns = build_turns(bench.folder)
    tally = Tally("power losses")
    for operation in operations(bench):
        if one_in == 1 or operation.name == "update":
            _operate(bench, operation, turns, tally)
    return {"C07": tally}


def _operate(bench: Bench, operation: Operation, turns: Path, tally: Tally) -> None:
    device = _Device(bench, operation)
    name = operation.name
    with device.home() as home:
        running = home.hold(*operation.argv)
        try:
            # Attach before the program begins: from its first call on, no change is missed.
            with taking_turns(turns, running.pid, home.folder / "tsuku") as calls:
                running.release()
                for number, call in enumerate(calls, 1):
                    where = f"{name}, call {number} ({call})"
                    tally.add(device.lost(operation.allowed), where=where)
        except Standstill as hang:
            tally.add([str(hang)], where=name)
        ended = running.end()
        if ended.code:
            tally.add([f"ended with {ended.code}: {ended.stderr!r}"], where=name)
        else:
            tally.add(device.lost({operation.final}), where=f"{name}, after exit code 0")


class _Device:
    """An ext4 that an operation works on, and its content after a power loss."""

    def __init__(self, bench: Bench, operation: Operation) -> None:
        self._bench = bench
        self._operation = operation
        self._image = bench.folder / f"{operation.name}.img"
        self._seen: tuple[int, int] | None = None
        self._known: dict[frozenset[str | None], list[str]] = {}
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        _command(require_tool("mkfs.ext4"), "-q", "-F", self._image).check_returncode()

    @contextlib.contextmanager
    def home(self) -> Iterator[Home]:
        """Yield a home on the device in its state before the operation, completely flushed."""
        template = self._operation.template
        with self._bench.made(template, Path.mkdir) as home:
            # Fill the disk in a separate mount: unmounting flushes everything.
            with mounted(self._image, home.folder / "tsuku", "loop"):
                copy_tree(template.folder / "tsuku", home.folder / "tsuku")
            # Then mount it again for the operation: only what the program flushes reaches the file.
            with mounted(self._image, home.folder / "tsuku", _LAZY):
                for version in home.store.installed():
                    home.store.check(version)
                os.sync()
                yield home
        self._image.unlink()

    def lost(self, allowed: Collection[str | None]) -> list[str]:
        """Return what is wrong after a power loss now."""
        status = self._image.stat()
        seen = status.st_mtime_ns, status.st_blocks
        # Without a new write to the file, the content is the one already looked at.
        if seen != self._seen:
            self._seen = seen
            self._known = {}
        key = frozenset(allowed)
        if key not in self._known:
            self._known[key] = self._look(allowed)
        return self._known[key]

    def _look(self, allowed: Collection[str | None]) -> list[str]:
        copy = self._image.with_suffix(".copy")
        _command("cp", "--sparse=always", self._image, copy).check_returncode()
        with (
            self._bench.made(self._operation.template, Path.mkdir) as home,
            mounted(copy, home.folder / "tsuku", "loop"),
        ):
            _start_again(home)
            wrong = [*home.wrong(allowed), *home.runs(), *self._operation.again_in(home)]
        copy.unlink()
        return wrong


def _start_again(home: Home) -> None:
    """Rewrite the lock notes as notes of an earlier boot: after a power loss no holder is alive.

    Here the holder is only held, so that a real check would find it alive.
    """
    for note in home.data.rglob("*.pid"):
        note.write_text(re.sub(" [^ ]*:", " an-earlier-boot:", note.read_text()))


def fill_up(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show C03 and A26: an update on a disk with more and more room, until it succeeds."""
    _require_root()
    tallies = {row: Tally("full disks") for row in ids}
    old, new = bench.new_tags(2)
    bench.publish(old)
    template = bench.customer(f"small-{old}")
    template.must("install")
    _publish_large(bench, new)
    fits = False
    for free in range(0, _DISK, _STEP * min(one_in, 8)):
        with bench.made(template, Path.mkdir) as home, _small_disk(home, template, free) as ballast:
            ended = home.run("update")
            wrong = [*ended.wrong(), *home.wrong({new} if ended.code == 0 else {old})]
            wrong += home.runs()
            if ended.code not in (0, _NO_SPACE):
                wrong.append(f"ended with {ended.code}: {ended.stderr!r}")
            fits = ended.code == 0
            # Now there is room: the same command must succeed.
            ballast.unlink()
            again = home.run("update")
            if again.code:
                wrong.append(f"then ended with {again.code}: {again.stderr!r}")
            wrong += [*home.wrong({new}), *home.leftovers()]
        for tally in tallies.values():
            tally.add(wrong, where=f"{free} bytes free")
        if fits:
            break
    for tally in tallies.values():
        tally.wrong += [] if fits else ["it never fitted"]
    return tallies


def _publish_large(bench: Bench, tag: str) -> None:
    """Publish a build that is small while packed: the disk fills while it is unpacked."""
    shop = bench.shop
    shop.stand_in(f"{tag}-cpu")
    folder = shop.nginx.root.parent / "builds" / f"{tag}-cpu"
    (folder / "padding").write_bytes(bytes(_UNPACKED))
    packed = pack_tar(folder, shop.nginx.root / "archives" / f"{tag}-cpu.tar.gz", root=f"{tag}-cpu")
    shop.publish(tag, {"cpu": shop.variant(packed)})


@contextlib.contextmanager
def _small_disk(home: Home, template: Home, free: int) -> Iterator[Path]:
    """Yield the file that fills a disk with the template so that ``free`` bytes are left."""
    folder = home.folder / "tsuku"
    with mounted("none", folder, f"size={_DISK},mode=755", "-t", "tmpfs"):
        copy_tree(template.folder / "tsuku", folder)
        for version in home.store.installed():
            home.store.check(version)
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(folder).free - free)))
        yield ballast


@contextlib.contextmanager
def mounted(device: Path | str, folder: Path, options: str, *more: str) -> Iterator[None]:
    """Mount for the block; skip if that is not allowed."""
    done = _command("mount", *more, "-o", options, device, folder)
    if done.returncode:
        pytest.skip(f"mount is not possible here: {done.stderr.strip()}")
    try:
        yield
    finally:
        if _command("umount", folder).returncode:
            # A process still uses it: detach it now, and the kernel unmounts it later.
            _command("umount", "-l", folder).check_returncode()


def _command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=_WITHIN)


def _require_root() -> None:
    if not is_root():
        pytest.skip("only root can mount")
