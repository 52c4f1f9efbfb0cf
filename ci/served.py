"""Which recorded machine gets which build: ``python -m ci.served``.

It signs a repository with the publisher's own tool and a throwaway signer. Its release has
upstream's builds and those of ``served.toml``, so the chooser of the program decides for each
machine of ``tests/snapshots``. ``docs/building.md`` has the tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import tomli

from tsuku_llm.choose.chain.judging import diagnose
from tsuku_llm.choose.chain.links import subject_of
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.fetch import Silent
from tsuku_llm.ground.errors import NotInstalled
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.choice import Choice, choose, load_catalog
from tsuku_llm.steps.metadata import repository as repositories
from tsuku_llm.steps.session import User, opened_session
from tsuku_publish.building.matrix import BuildMatrix, load_matrix
from tsuku_publish.building.recipe import device_code
from tsuku_publish.release_files.plan import save_channel

_ROOT = Path(__file__).resolve().parents[1]
_MACHINES = _ROOT / "tests" / "snapshots"
_NAME = "own"
KINDS = ("GPU", "CPU", "nothing")
_NO_DEVICE = "no: no driver lists one"


@dataclass(frozen=True)
class OwnBuild:
    """A build that the repository adds, as ``served.toml`` describes it."""

    name: str
    backend: str
    platforms: tuple[str, ...]
    requires: Mapping[str, Any]
    known: str
    toolkit: str = ""
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """The content of ``served.toml``."""

    upstream: str
    build: tuple[OwnBuild, ...]
    stays: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """What one machine gets from a release: a variant's name, None if no build fits.

    ``kind`` is ``GPU``, ``CPU`` or ``nothing``. ``reason`` is the chooser's own for the last two.
    ``idle`` tells that a driver lists a GPU although it is not used.
    """

    variant: str | None
    kind: str
    reason: str
    idle: bool


def load_data() -> Data:
    """Read ``served.toml``."""
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return msgspec.convert(tomli.loads(text), Data)


def own_release(data: Data, upstream: Mapping[str, Any], matrix: BuildMatrix) -> dict[str, Any]:
    """Return upstream's release document with our builds behind its own."""
    document: dict[str, Any] = json.loads(json.dumps(upstream))
    for build in data.build:
        for platform in build.platforms:
            variants = document["platforms"][platform]["variants"]
            variants[build.name] = {
                "backend": build.backend,
                "server": "llama-server",
                "requires": requirements(build, matrix),
                "artifacts": [_artifact(f"{platform}/{build.name}")],
            }
    return document


def requirements(build: OwnBuild, matrix: BuildMatrix) -> dict[str, Any]:
    """Return what a build requires, with the device code of its CUDA line."""
    found = dict(build.requires)
    if build.toolkit:
        line = matrix.cuda_line(build.toolkit)
        sass, ptx = device_code(build.architectures or (line.architectures if line else ()))
        found["cuda"] = {"toolkit": build.toolkit, "sass": [*sass], "ptx": [*ptx]}
    return found


def _artifact(name: str) -> dict[str, Any]:
    digest = sha256(name.encode()).hexdigest()
    url = f"https://archives.invalid/{digest}.tar.gz"
    return {"url": url, "sha256": digest, "size": 1, "format": "tar.gz", "root": "llama"}


def publish(document: Mapping[str, Any], folder: Path) -> Path:
    """Sign and publish a release with ``tsuku-publish``; return the folder that is served."""
    data, shop, tag = folder / "company", folder / "shop", str(document["release"])
    where, signers = ("--data", str(data)), str(folder / "company-signers")
    _tool("init", str(data), "--publisher", "tests", "--root", "anna", "--unencrypted")
    (data / "releases" / f"{tag}.json").write_text(json.dumps(document), "utf-8")
    save_channel(data, "stable", (tag,))
    _tool("sign", *where, "--yes", "--offline", TSUKU_LLM_SIGNERS=signers)
    _tool("publish", *where, str(shop))
    return shop


def _tool(*words: str, **environ: str) -> None:
    command = [sys.executable, "-m", "tsuku_publish", *words]
    subprocess.run(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, check=True)


def ask(data: Data) -> dict[str, tuple[Served, ...]]:
    """Return what each machine gets from upstream's stable and newest releases, and with ours."""
    (file,) = (_ROOT / "manifests" / "targets").rglob(f"*.{data.upstream}.json")
    document = own_release(data, json.loads(file.read_bytes()), load_matrix())
    with tempfile.TemporaryDirectory(prefix="served-") as name:
        folder = Path(name)
        shop = publish(document, folder)
        environ = {"TSUKU_HOME": str(folder / "home")}
        user = User(lambda _: None, Silent(), lambda _: False)
        with opened_session(user, environ, {}) as upstream:
            root = folder / "company" / "signed" / "metadata" / "1.root.json"
            repositories.add(upstream, _NAME, f"{shop.as_uri()}/", root)
            official = load_catalog(upstream)
        with opened_session(user, environ, {"repository": _NAME}) as own:
            catalog = load_catalog(own)
        return {
            path.stem: (
                _served(choose(upstream, catalog=official, hardware=hardware)),
                _served(
                    choose(upstream, release=data.upstream, catalog=official, hardware=hardware)
                ),
                _served(choose(own, catalog=catalog, hardware=hardware)),
            )
            for path in sorted(_MACHINES.glob("*.json"))
            for hardware in (probe(ReplayHost.load(path)),)
        }


def _served(choice: Choice) -> Served:
    best = next(iter(choice.selection.compatible), None)
    if best and best.gpu:
        return Served(best.variant.name, "GPU", "", idle=False)
    hardware = choice.hardware
    idle = any(api.hardware_gpus for api in hardware.apis)
    # As ``doctor`` explains it: why no GPU is used, or why not even the CPU's build fits.
    everything = select(choice.release, hardware, Request())
    subject = subject_of("gpu" if best else "auto", everything, hardware, None)
    fault = diagnose(subject, hardware, everything, NotInstalled(""), None).fault
    kind, variant = ("CPU", best.variant.name) if best else ("nothing", None)
    return Served(variant, kind, fault.text if fault else "", idle)


def lines(data: Data, found: Mapping[str, tuple[Served, ...]]) -> Iterator[str]:
    """Yield the tables in Markdown: the builds, the counts, what changes and what stays."""
    yield from _table(
        ("build of our own", "for", "needs", "known"),
        (
            (f"`{each.name}`", ", ".join(each.platforms), _needs(each), each.known)
            for each in data.build
        ),
    )
    yield ""
    heads = ("upstream's stable release", f"upstream's {data.upstream}", "the same and our builds")
    counts = [Counter(each[at].kind for each in found.values()) for at in range(len(heads))]
    yield from _table(
        (f"{len(found)} machines", *KINDS),
        (
            (head, *(str(count[kind]) for kind in KINDS))
            for head, count in zip(heads, counts, strict=True)
        ),
    )
    yield ""
    yield from _table(
        ("machine that gets another build", f"of {data.upstream}", "with our builds"),
        (
            (name, _named(newest), _named(ours))
            for name, (_, newest, ours) in found.items()
            if newest.variant != ours.variant
        ),
    )
    yield ""
    yield from _table(
        ("machine without a GPU build", "gets", "why", "could a build use its GPU?"),
        (
            (name, _named(ours), ours.reason, data.stays.get(name, _NO_DEVICE))
            for name, (_, _, ours) in found.items()
            if ours.kind != "GPU"
        ),
    )


def _named(served: Served) -> str:
    return f"`{served.variant}`" if served.variant else "nothing"


def _needs(build: OwnBuild) -> str:
    named = {"glibc": "glibc", "libstdcxx": "libstdc++", "macos": "macOS"}
    floors = [f"{named[key]} {build.requires[key]}" for key in named if key in build.requires]
    return ", ".join(["musl"] * ("musl" in build.requires) + floors)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, tuple("---" for _ in head), *rows):
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    DATA = load_data()
    print("\n".join(lines(DATA, ask(DATA))))
