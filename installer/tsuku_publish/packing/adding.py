"""Builds of one's own become variants of a release file: measured, packed and entered."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch import Network, fetch
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.ground.errors import UnsafeArchive, UsageError
from tsuku_llm.ground.files import make_folder
from tsuku_llm.ground.tree_entry import TreeEntry
from tsuku_llm.machine.backends import POLICIES
from tsuku_publish.packing.draft import Draft
from tsuku_publish.packing.measuring import (
    PLATFORMS,
    MeasuredBuild,
    backend_of,
    measure_tree,
    requirements_of,
    server_of,
)
from tsuku_publish.packing.pack import (
    PackedArchive,
    Place,
    format_of,
    listed,
    measured_file,
    opened,
    pack_tree,
    require_fetchable,
    require_usable,
)
from tsuku_publish.packing.tree import without_top

FORMAT = 1
_TAG = re.compile(r"b[0-9]{1,15}")
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
"""What clients accept as the name of a variant."""
_SHOWN = 80
"""Characters of a wrong name that are shown."""
_ORDERS: dict[str, tuple[str, ...]] = {
    "portable": ("vulkan", "metal", "cuda", "rocm", "sycl", "openvino", "opencl", "cpu"),
    "native": ("cuda", "metal", "rocm", "sycl", "openvino", "vulkan", "opencl", "cpu"),
}
"""The orders of backends for a new platform, as the official repository has them."""
_MEASURED = frozenset(
    {"glibc", "musl", "libstdcxx", "macos", "vcruntime", "libraries"}
    | {"cuda", "rocm", "vulkan", "level_zero", "openvino", "metal"}
)
"""What ``add`` states anew; what a person wrote into ``requires`` besides stays.

So does ``x86_64_level``: a build without the linker's mark may need one.
"""


@dataclass(frozen=True, slots=True)
class NewVariant:
    """A build, and the variant that it becomes; ``platform`` None is told by its server.

    ``builds`` is one folder or archive, or the https URLs of archives that belong together.
    """

    platform: str | None
    name: str
    builds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddedVariant:
    """A variant of the release file as it is now.

    ``kept`` are the requirements that were in the file before and were not measured.
    """

    platform: str
    variant: str
    backend: str
    measured: MeasuredBuild
    archives: tuple[PackedArchive, ...]
    kept: Mapping[str, Any]


def add(
    folder: Path,
    release: str,
    variants: Sequence[NewVariant],
    place: Place | None,
    *,
    publisher: str,
    published: str,
    system: Collection[str] = (),
) -> tuple[AddedVariant, ...]:
    """Measure and pack builds, and enter them into a release file, which is made if needed.

    Builds with a URL are not packed: users fetch them from there, and need no ``place``.
    ``folder`` has the release files; this one has the name of its release. ``publisher`` and
    ``published`` are for a new file. Raises ``UsageError`` for a build that cannot be entered,
    ``PublishError`` for a damaged one, ``UnsafeArchive`` for an archive, and the errors of the
    disk. The release file is replaced in one step, at the end.
    """
    if place is not None:
        require_usable(place)
    for variant in variants:
        # First: to measure and pack a build takes minutes.
        if not _NAME.fullmatch(variant.name):
            raise UsageError(
                f"a variant cannot be named {variant.name[:_SHOWN]!a}",
                facts=("a name has 1 to 64 of a-z, 0-9 and ._+-, and begins with one of a-z, 0-9",),
                hint="name it after its backend, such as cpu-debian11 or cuda-12.4",
            )
    draft = _draft(folder, release, publisher, published)
    added: list[AddedVariant] = []
    with Network(os.environ) as network:
        for variant in variants:
            entered = _added(draft, variant, place, system, network)
            named = (entered.platform, entered.variant)
            if any((each.platform, each.variant) == named for each in added):
                raise UsageError(
                    f"two builds are given for {entered.variant} of {entered.platform}",
                    hint="give each build its own variant, such as cuda-13.0 and cuda-12.4",
                )
            added.append(entered)
    # Last: the release file never names an archive that is not complete.
    draft.write()
    return tuple(added)


def _draft(folder: Path, release: str, publisher: str, published: str) -> Draft:
    # First: a name with a slash would lead to another folder.
    if not _TAG.fullmatch(release):
        raise UsageError(
            f"a release is named b and its build number, not {release!a}",
            hint="take a higher number for each release: b1, b2",
        )
    path = folder / f"{release}.json"
    if path.exists():
        draft = Draft.read(path)
        draft.require_sound()
        return draft
    if not publisher:
        raise UsageError(
            "a new release has to say who built it",
            hint='name the publisher: --publisher "Example Ltd", or publisher in repository.toml',
        )
    head = {"format": FORMAT, "release": release, "publisher": publisher}
    make_folder(folder)
    return Draft(path, {**head, "published": published, "platforms": {}})


@contextmanager
def _read(
    variant: NewVariant, place: Place | None, network: Network
) -> Iterator[tuple[Path, tuple[TreeEntry, ...], tuple[PackedArchive, ...]]]:
    """Yield the tree of a variant, its entries, and its archives if they are served already."""
    if all(build.startswith("https://") for build in variant.builds):
        with _downloaded(variant.builds, network) as found:
            yield found
        return
    if len(variant.builds) > 1:
        raise UsageError(
            f"{variant.name} has several builds",
            facts=variant.builds,
            hint="copy them into one folder; only https URLs may be several",
        )
    if place is None:
        raise UsageError(
            f"{variant.name} is to be packed, and it is not said where",
            facts=variant.builds,
            hint="say where its archives go and are served: --into FOLDER --url URL",
        )
    with opened(Path(variant.builds[0]), place.folder) as folder:
        yield (*without_top(folder), ())


@contextmanager
def _downloaded(
    builds: Sequence[str], network: Network
) -> Iterator[tuple[Path, tuple[TreeEntry, ...], tuple[PackedArchive, ...]]]:
    """Yield the one tree of archives that another host serves, its entries, and the archives.

    They are downloaded once, and users fetch them from there. Raises ``UsageError`` for a URL
    without its digest and for archives with the same file, ``UnsafeArchive``, and the errors of the
    network and the disk.
    """
    with tempfile.TemporaryDirectory(prefix="tsuku-publish-") as aside:
        tree = Path(aside, "tree")
        tree.mkdir()
        entries: list[TreeEntry] = []
        archives = []
        for number, build in enumerate(builds):
            url, fragment = urldefrag(build)
            require_fetchable(url)
            digest, kind = _DIGEST.fullmatch(fragment), format_of(url)
            if digest is None or kind is None:
                raise UsageError(
                    f"{shown(url)} is no archive with its digest",
                    facts=("an archive ends with .tar.gz, .tgz or .zip",),
                    hint="write its digest, as its publisher states it, behind the URL: "
                    "URL#sha256=64 hexadecimal digits",
                )
            named = Artifact(url=url, sha256=digest[1], size=None, format=kind)
            path = fetch(named, Path(aside, "archives"), network)
            unpacked = Path(aside, str(number))
            unpacked.mkdir()
            try:
                unpack(path, named, unpacked)
            except UnsafeArchive as error:
                error.hint = "name another archive"
                raise
            top, items = without_top(unpacked)
            if twice := {each.path for each in items} & {each.path for each in entries}:
                raise UsageError(
                    "two archives of a variant have the same file",
                    facts=(min(twice),),
                    hint="name only archives that belong together",
                )
            for item in items:
                (tree / item.path).parent.mkdir(parents=True, exist_ok=True)
                (top / item.path).rename(tree / item.path)
            entries += items
            root = "" if top == unpacked else top.name
            served = listed(items, url, measured_file(path), kind, root)
            archives.append(PackedArchive(None, served, written=False))
        yield tree, tuple(sorted(entries, key=lambda each: each.path)), tuple(archives)


def _added(
    draft: Draft,
    variant: NewVariant,
    place: Place | None,
    system: Collection[str],
    network: Network,
) -> AddedVariant:
    with _read(variant, place, network) as (tree, items, served):
        server = server_of(items)
        if server is None:
            raise UsageError(
                f"{', '.join(variant.builds)} has not exactly one llama-server",
                hint="name the folder that holds the server and its libraries",
            )
        measured = measure_tree(tree, items)
        platform = _platform(variant, measured)
        backend = backend_of(variant.name, measured)
        needs = requirements_of(variant.name, backend, platform, measured, system)
        archives = served or (pack_tree(tree, items, place) if place else ())
    described = draft.platform(platform)
    before = described["variants"].get(variant.name, {})
    kept = {
        key: value
        for key, value in before.get("requires", {}).items()
        if key not in _MEASURED and key not in needs
    }
    entry = {**before, "backend": backend, "server": server, "requires": {**kept, **needs}}
    if backend == "cpu" and len(measured.backends) > 1:
        # The CPU variant of a build with GPU code never opens a GPU.
        entry.setdefault("arguments", ["--device", "none"])
    entry["artifacts"] = [each.artifact.document() for each in archives]
    described["variants"][variant.name] = entry
    _choose(described, variant.name)
    return AddedVariant(platform, variant.name, backend, measured, archives, kept)


def _platform(variant: NewVariant, measured: MeasuredBuild) -> str:
    """Return the platform that a build is for, as it was told or as its server shows it."""
    told, shown = variant.platform, measured.platform
    if told is None and shown is None:
        raise UsageError(
            f"{variant.name}: its server does not show for which platform it is",
            facts=(f"server: {measured.server}",),
            hint=f"name the platform: --variant linux-amd64/{variant.name}=BUILD",
        )
    if told is not None and (told not in PLATFORMS or shown not in (None, told)):
        raise UsageError(
            f"{variant.name}: its server is not one for {told}",
            facts=(f"for: {shown}",) if shown else (f"platforms: {', '.join(PLATFORMS)}",),
            hint="name the platform that the build is for, or leave it out",
        )
    return told or str(shown)


def _choose(platform: dict[str, Any], added: str) -> None:
    """Complete a platform's default and orders for a variant that was added.

    The default is what runs without a GPU, if there is such a variant. The orders that a person
    wrote stay; a backend that they lack comes before the CPU.
    """
    variants = platform["variants"]
    default = platform.get("default")
    if default not in variants or (
        variants[added]["backend"] == "cpu" and variants[default].get("backend") != "cpu"
    ):
        platform["default"] = added
    present = {entry.get("backend") for entry in variants.values()}
    orders = platform.setdefault("preference", {})
    for policy in POLICIES:
        known = [*orders.get(policy, ())]
        if not known:
            orders[policy] = [name for name in _ORDERS[policy] if name in present]
            continue
        at = known.index("cpu") if "cpu" in known else len(known)
        known[at:at] = [name for name in _ORDERS[policy] if name in present - {*known}]
        orders[policy] = known
