"""Rows L: many processes that use one store."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from support.forked import Ended, Running, attached
from support.processes import stopped
from support.waiting import Standstill

from ci.faultlab.bench import Bench, Home
from ci.faultlab.points import calls_in
from ci.faultlab.verdict import Tally

_MANY = 50
_SOON = 1.0
"""Seconds within which another process has to take the lock of a killed holder."""
_LIMIT = 300.0
_EXCLUDES_NOBODY = "retval=0"
_WITHOUT_FLOCK = ("error=ENOSYS", "error=ENOLCK", _EXCLUDES_NOBODY)
"""No such call, no lock daemon, and a flock that excludes no process, as on some NFS."""


def crowd(bench: Bench, ids: Collection[str], _one_in: int) -> dict[str, Tally]:
    """Show these rows."""
    tallies = {}
    for row, (what, show) in _SHOWN.items():
        if row in ids:
            tallies[row] = Tally(what)
            for where, wrong in show(bench):
                tallies[row].add(wrong, where=where)
    return tallies


Shown = Iterator[tuple[str, list[str]]]


def _many(bench: Bench) -> Shown:
    """Show L01: all processes install the same variant."""
    (tag,) = bench.new_tags(1)
    bench.publish(tag)
    home = bench.customer(f"crowd-{tag}")
    before = len(bench.shop.downloads())
    ended = _together(home, [("install",)] * _MANY)
    downloads = len(bench.shop.downloads()) - before
    wrong = [] if downloads == 2 else [f"{downloads} downloads of 2 archives"]  # noqa: PLR2004
    yield f"{_MANY} processes", [*wrong, *_all_well(ended), *_in_order(home, {tag})]
    home.remove()


def _different(bench: Bench) -> Shown:
    """Show L02: different variants, three processes each."""
    (tag,) = bench.new_tags(1)
    shop = bench.shop
    names = [f"cpu-{letter}" for letter in "abcd"]
    variants = {name: shop.variant(shop.stand_in(f"{tag}-{name}", padding=2000)) for name in names}
    shop.publish(tag, variants)
    home = bench.customer(f"variants-{tag}")
    before = len(shop.downloads())
    ended = _together(home, [("install", "--backend", name) for name in names * 3])
    wrong = [*_all_well(ended), *_in_order(home, {tag})]
    if len(home.store.installed()) != len(names):
        wrong.append(f"{len(home.store.installed())} of {len(names)} versions")
    if len(shop.downloads()) - before != len(names):
        wrong.append(f"{len(shop.downloads()) - before} downloads of {len(names)} archives")
    yield f"{len(names)} variants, 3 processes each", wrong
    home.remove()


def _killed(bench: Bench) -> Shown:
    """Show L03: the holder of the lock dies while it downloads and another process waits."""
    with _held(bench) as (home, holder, tag):
        waiter = home.start("install")
        # Wait until the second process waits for the lock, and says so: only then kill the holder.
        _until(lambda: f"process {holder.pid}" in waiter.said(), waiter)
        holder.kill()
        began = time.monotonic()
        _until(lambda: _holders(home) == {waiter.pid}, waiter)
        took = time.monotonic() - began
        wrong = [] if took < _SOON else [f"{took:.2f} s until the next had it"]
        ended = waiter.end()
        holder.end()
        yield "killed in a download", [*wrong, *_all_well([ended]), *_in_order(home, {tag})]


def _stopped(bench: Bench) -> Shown:
    """Show L04: the holder is stopped; the waiting process names it, gives up, changes nothing."""
    with _held(bench) as (home, holder, tag):
        holder.kill(signal.SIGSTOP)
        # SIGSTOP works with a delay: wait until the kernel reports the process as stopped.
        stopped(holder.pid)
        ended = home.run("install", TSUKU_LLM_LOCK_TIMEOUT="1")
        wrong = ended.wrong()
        text = ended.stderr
        if ended.code != 6:  # noqa: PLR2004
            wrong.append(f"ended with {ended.code}: {text!r}")
        for word in (f"process {holder.pid}", ".lock", f"kill -CONT {holder.pid}"):
            if word not in text:
                wrong.append(f"{word} is not named: {text!r}")
        holder.kill(signal.SIGCONT)
        yield (
            "stopped in a download",
            [
                *wrong,
                *_all_well([holder.end()]),
                *_in_order(home, {tag}),
            ],
        )


def _no_lock_file(bench: Bench) -> Shown:
    """Show L05: something else is in the place of the lock."""
    (tag,) = bench.new_tags(1)
    bench.publish(tag)
    home = bench.customer(f"locks-{tag}")
    home.must("install")
    (version,) = home.store.installed()
    home.must("uninstall", tag)
    lock = home.data / "locks" / f"{version.id}.lock"
    for kind, spoil in _IN_THE_PLACE.items():
        lock.unlink(missing_ok=True)
        spoil(lock)
        ended = home.run("install")
        wrong = [*ended.wrong(), *home.wrong({None})]
        if ended.code != 6:  # noqa: PLR2004
            wrong.append(f"ended with {ended.code}: {ended.stderr!r}")
        yield kind, wrong
        lock.rmdir() if lock.is_dir() else lock.unlink()
    home.must("install")
    yield "then nothing there", _in_order(home, {tag})
    home.remove()


_IN_THE_PLACE: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("../../outside"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a folder": Path.mkdir,
    "a fifo": os.mkfifo,
}


def _without_flock(bench: Bench) -> Shown:
    """Show L06: no lock excludes another process, and several install at once."""
    for fault in _WITHOUT_FLOCK:
        (tag,) = bench.new_tags(1)
        bench.publish(tag)
        home = bench.customer(f"flock-{tag}")
        # strace has to be attached to each process before any of them begins.
        held = [home.hold("install") for _ in range(4)]
        with contextlib.ExitStack() as stack:
            for running in held:
                options = ("-e", "trace=flock", "-e", f"inject=flock:{fault}", "-o", "/dev/null")
                stack.enter_context(attached(running.pid, *options))
            for running in held:
                running.release()
            ended = [running.end() for running in held]
        if fault == _EXCLUDES_NOBODY:
            # They write into one another's downloads. An install may refuse what comes of that,
            # with one error; one that is alone must then succeed.
            wrong = [text for each in ended for text in each.wrong()]
            wrong += home.wrong({tag, None})
            home.must("install")
        else:
            wrong = _all_well(ended)
        yield f"flock: {fault}", [*wrong, *_in_order(home, {tag})]
        home.remove()


def _while_serving(bench: Bench) -> Shown:
    """Show L07: two updates and a prune while a server runs from the first version."""
    tags = bench.new_tags(3)
    bench.publish(tags[0])
    home = bench.customer(f"serving-{tags[0]}")
    home.must("install")
    with serving(home) as answers:
        (old,) = home.store.installed()
        for tag in tags[1:]:
            bench.publish(tag)
            home.must("update")
        ended = home.run("prune")
        wrong = [*ended.wrong(), *home.wrong({tags[2]})]
        wrong += [] if answers() else ["the server does not answer any more"]
        if old.id not in {version.id for version in home.store.installed()}:
            wrong.append("its files were removed")
        refused = home.run("uninstall", tags[0])
        if refused.code != 6:  # noqa: PLR2004
            wrong.append(f"uninstall ended with {refused.code}: {refused.stderr!r}")
        wrong += [] if answers() else ["the server does not answer after uninstall"]
    yield "two updates, prune and uninstall", wrong
    home.must("prune")
    gone = old.id not in {version.id for version in home.store.installed()}
    yield "prune afterwards", [] if gone else ["the old version stays for ever"]
    home.remove()


def _inherited(bench: Bench) -> Shown:
    """Show L08: every file of the store is opened so that no child inherits it."""
    (tag,) = bench.new_tags(1)
    bench.publish(tag)
    home = bench.customer(f"inherit-{tag}")
    ended, log = home.traced(("install",), "-y", "-e", "trace=openat,clone,clone3")
    for call in calls_in(log, ended.pid):
        if call.name == "openat" and f"<{home.data}" in call.text.rpartition(" = ")[2]:
            yield call.text, [] if "O_CLOEXEC" in call.text else ["opened to be inherited"]
    yield "the install", _all_well([ended])
    home.remove()


_SHOWN: dict[str, tuple[str, Callable[[Bench], Shown]]] = {
    "L01": (f"crowds of {_MANY}", _many),
    "L02": ("crowds of 12", _different),
    "L03": ("kills", _killed),
    "L04": ("stops", _stopped),
    "L05": ("things in its place", _no_lock_file),
    "L06": ("kinds of flock", _without_flock),
    "L07": ("runs during a server", _while_serving),
    "L08": ("opened files", _inherited),
}


@contextlib.contextmanager
def _held(bench: Bench) -> Iterator[tuple[Home, Running, str]]:
    """Yield a home in which one process downloads slowly and so holds the locks of an install."""
    (tag,) = bench.new_tags(1)
    packed = bench.shop.stand_in(f"{tag}-cpu", padding=1_500_000)
    bench.shop.publish(tag, {"cpu": bench.shop.variant(packed, folder="slow")})
    home = bench.customer(f"held-{tag}")
    holder = home.start("install")
    part = home.data / "partials" / f"{packed.sha256}.part"
    _until(lambda: part.exists() and part.stat().st_size > 0, holder)
    yield home, holder, tag
    home.remove()


@contextlib.contextmanager
def serving(home: Home) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a server, run from the active version, still answers."""
    running = home.start("serve", "--", "--port", "0")
    pattern = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
    _until(lambda: pattern.search(running.said()) is not None, running)
    found = pattern.search(running.said())
    port = int(found[1]) if found else 0

    def answers() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200  # noqa: PLR2004
        except OSError:
            return False
        finally:
            connection.close()

    try:
        yield answers
    finally:
        running.kill(signal.SIGTERM)
        running.end()


def _together(home: Home, commands: list[tuple[str, ...]]) -> list[Ended]:
    """Run commands that all begin at the same moment."""
    running = [home.hold(*argv) for argv in commands]
    # All processes exist and wait for their signal, so they begin almost at once.
    for each in running:
        each.release()
    return [each.end() for each in running]


def _all_well(ended: list[Ended]) -> list[str]:
    return [
        text
        for each in ended
        for text in (*each.wrong(), *([f"{each.code}: {each.stderr!r}"] if each.code else []))
    ]


def _in_order(home: Home, allowed: Collection[str | None]) -> list[str]:
    return [*home.wrong(allowed), *home.runs(), *home.leftovers()]


def _holders(home: Home) -> set[int]:
    """Return the processes whose notes say that they hold a lock of an archive."""
    notes = (home.data / "locks").glob("?" * 64 + ".pid")
    texts = [path.read_text("utf-8") for path in notes if path.exists()]
    return {int(text.split()[0]) for text in texts if text.split()}


def _until(true: Callable[[], bool], running: Running) -> None:
    """Wait until a run has reached a state; raise ``Standstill`` if it does not."""
    limit = time.monotonic() + _LIMIT
    while not true():
        if time.monotonic() > limit:
            raise Standstill(f"not where it should be after {_LIMIT:.0f} s: {running.seen()}")
        time.sleep(0.005)
