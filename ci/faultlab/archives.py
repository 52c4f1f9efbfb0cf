"""Rows A: hostile archives, correctly signed, given to the whole program."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.builds import NO_DEVICE_STEPS, Packed, pack_tar

from ci.faultlab.bench import Bench, Home, sample
from ci.faultlab.crowds import serving
from ci.faultlab.offers import offer
from ci.faultlab.verdict import Tally

_ID = re.compile(r"A\d\d")
# A refusal is a download error (4) or an error of trust (5).
_CODES = {4, 5}
_SERVER = "llama-server"

Offer = dict[str, Any]


def unpack_hostile(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Install each archive next to a version that serves; with sampling, one in ``one_in``."""
    tallies = {row: Tally("hostile installs") for row in ids}
    cases = {case: each for case, each in _offers(bench).items() if case[:3] in ids}
    chosen = {case: cases[case] for case in _of_every_row(list(cases), one_in)}
    (good,) = bench.new_tags(1)
    bench.publish(good)
    tags = offer(bench, chosen)
    (later,) = bench.new_tags(1)
    home = bench.customer("hostile")
    home.must("install", "--release", good)
    # One server runs through all installs: no hostile archive may disturb it.
    with serving(home) as answers:
        for case, tag in tags.items():
            ended = home.run("install", "--release", tag)
            wrong = [*ended.wrong(), *home.wrong({good}), *_staged(home)]
            wrong += [] if answers() else ["the old version does not serve any more"]
            if _is_good(case):
                wrong = _accepted(home, tag) if ended.code == 0 else [ended.stderr]
                home.must("use", good)
            elif ended.code not in _CODES:
                wrong.append(f"ended with {ended.code}: {ended.stderr!r}")
            tallies[case[:3]].add(wrong, where=case)
    # At the end the same home must still be able to update and to clean up.
    bench.publish(later)
    home.must("update")
    home.must("prune")
    for tally in tallies.values():
        tally.wrong += [*home.wrong({later}), *home.runs(), *home.leftovers()]
    home.remove()
    return tallies


def _of_every_row(cases: list[str], one_in: int) -> list[str]:
    """Take a sample in which every row has a case."""
    rows: dict[str, list[str]] = {}
    for case in cases:
        rows.setdefault(case[:3], []).append(case)
    return [case for each in rows.values() for case in sample(each, one_in)]


def _offers(bench: Bench) -> dict[str, Offer]:
    """Return every hostile archive of the tests, and builds whose signed list of files is wrong."""
    hostile = importlib.import_module("archive.test_hostile")
    bombs = {"A21_gzip_bomb": (hostile.gzip_bomb(), "tar.gz")}
    archives = {**hostile.REFUSED, **hostile.DAMAGED, **bombs}
    offers = {
        case: _stored(bench, case, data, kind)
        for case, (data, kind) in archives.items()
        if _ID.match(case)
    }
    return offers | dict(_listed(bench)) | dict(_with_modes(bench))


def _stored(bench: Bench, case: str, data: bytes, kind: str) -> Offer:
    name = re.sub(r"\W", "_", case)
    path = bench.shop.nginx.root / "archives" / f"{name}.{kind}"
    path.write_bytes(data)
    packed = Packed(path, hashlib.sha256(data).hexdigest(), len(data), kind, "")
    return packed.artifact(bench.shop.url(packed))


def _listed(bench: Bench) -> Iterator[tuple[str, Offer]]:
    """Yield A19 and A20: the build is honest, and the signed list of files differs from it."""
    # A file of its own that counts: what is installed already is not fetched again.
    own = (*NO_DEVICE_STEPS, "err listed")
    packed = bench.shop.stand_in("listed", padding=3000, devices=own)
    folder = bench.shop.nginx.root.parent / "builds" / "listed"
    files = {path.name: _entry(path) for path in sorted(folder.iterdir())}
    server = files[_SERVER]
    lies: Mapping[str, list[Offer]] = {
        "A19_extra_file": [each for each in files.values() if each is not files["padding"]],
        "A20_missing_file": [*files.values(), {**server, "path": "libggml-more.so"}],
        "A20_short": [*_but(files, {**server, "size": server["size"] + 1})],
        "A20_long": [*_but(files, {**server, "size": server["size"] - 1})],
        "A20_one_bit": [*_but(files, {**server, "sha256": files["padding"]["sha256"]})],
        "A20_good_list": [*files.values()],
    }
    for case, listing in lies.items():
        yield case, {**packed.artifact(bench.shop.url(packed)), "files": listing}


def _but(files: Mapping[str, Offer], other: Offer) -> list[Offer]:
    return [other if name == other["path"] else entry for name, entry in files.items()]


def _entry(path: Path) -> Offer:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    executable = os.access(path, os.X_OK)
    return {"path": path.name, "size": len(data), "sha256": digest, "executable": executable}


def _with_modes(bench: Bench) -> Iterator[tuple[str, Offer]]:
    """Yield A14: builds that are good except for the modes in their archives."""
    shop = bench.shop
    for mode in (0o6777, 0o1755, 0o2711):
        name = f"modes-{mode:o}"
        shop.stand_in(name)
        folder = shop.nginx.root.parent / "builds" / name
        (folder / _SERVER).chmod(mode)
        packed = pack_tar(folder, shop.nginx.root / "archives" / f"{name}.tar.gz", root=name)
        yield f"A14_good_{name}", packed.artifact(shop.url(packed))


def _is_good(case: str) -> bool:
    return "_good_" in case


def _accepted(home: Home, tag: str) -> list[str]:
    wrong = home.wrong({tag})
    active = home.store.active()
    for path in active.tree.rglob("*") if active else ():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode not in (0o444, 0o555):  # a build is read-only
            wrong.append(f"{path.name} has mode {mode:o}")
    return wrong


def _staged(home: Home) -> list[str]:
    return [f"left in staging: {path.name}" for path in (home.data / "staging").iterdir()]
