"""zig as a base: compilers for an older glibc or musl, fetched once with pip."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import rename
from tsuku_publish.building.matrix import BuildMatrix, Words, Zig
from tsuku_publish.building.place import SHARED, ZigPlace
from tsuku_publish.building.recipe import backends_of
from tsuku_publish.building.running import run_pip

_COMPILER = """#!/bin/sh
exec "${{0%/*}}/../ziglang/zig" {language} -target {target} "$@"
"""


@dataclass(frozen=True, slots=True)
class WantedZig:
    """zig as the base that is named; ``root`` is there when it is complete, and serves each."""

    name: str
    root: Path
    zig: Zig

    @property
    def contents(self) -> Words:
        """Return what pip fetches."""
        return (self.zig.requirement,)

    @property
    def made(self) -> bool:
        """Whether zig is there."""
        return self.root.is_dir()

    def place(self) -> ZigPlace:
        """Return where its compilers are."""
        return ZigPlace(given=self.zig.environment, folder=self.root, zig=self.zig, base=self.name)


def wanted_zig(
    word: str, variant: str, matrix: BuildMatrix, folder: Path, platform: str
) -> WantedZig:
    """Return zig for a variant, in a folder of ``folder``. Raises ``UsageError``."""
    zig = matrix.zig
    if platform != zig.platform:
        raise UsageError(
            f"the base {word} is not for {platform}",
            facts=(f"it is for: {zig.platform}",),
            hint="name a folder with the root file system of your own: --base FOLDER",
        )
    if not {*backends_of(variant, matrix)} <= {*zig.backends}:
        raise UsageError(
            f"{variant} cannot be built in the base {word}",
            facts=(f"it can build: {', '.join(zig.backends)}",),
            hint="build it without --base, or in a folder of your own that has its tools",
        )
    key = hashlib.sha256(repr((zig.sha256, _compilers(zig))).encode()).hexdigest()[:12]
    return WantedZig(word, folder / f"zig-{zig.version}-{key}", zig)


def make_zig(wanted: WantedZig, environ: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Let pip fetch zig, check its digest and unpack it; then write a compiler for each target.

    The caller holds the work folder. Raises ``BuildFailed`` with pip's last lines, ``NoSpace``, and
    the errors of the disk.
    """
    zig, folder = wanted.zig, wanted.root.parent
    beside = wanted.root.with_name(f".{wanted.root.name}.new")
    scratch, asked = beside / "tmp", beside / "requirements.txt"
    log = folder / f"{wanted.root.name}.log"
    tell(f"{wanted.name}: fetching {zig.requirement} into {wanted.root}, once; its log is {log}")
    with disk_errors("making a folder", folder):
        if beside.exists():
            shutil.rmtree(beside)  # a killed run's
        log.unlink(missing_ok=True)
        scratch.mkdir(parents=True)
        asked.write_text(f"{zig.requirement} --hash=sha256:{zig.sha256}\n", "utf-8")
    run_pip(
        [
            *("install", "--only-binary=:all:", "--no-compile", f"--target={beside}"),
            *("--requirement", str(asked)),
        ],
        doing=f"fetching {zig.requirement} with pip",
        log=log,
        folder=folder,
        scratch=scratch,
        environ=environ,
    )
    with disk_errors("writing zig's compilers", beside):
        shutil.rmtree(scratch)
        (beside / SHARED).write_text("set(BUILD_SHARED_LIBS ON)\n", "utf-8")
        for path, text in _compilers(zig).items():
            compiler = beside / path
            compiler.parent.mkdir(exist_ok=True)
            compiler.write_text(text, "utf-8")
            compiler.chmod(0o755)
        rename(beside, wanted.root)


def _compilers(zig: Zig) -> dict[str, str]:
    """Return the script of each compiler by its path below zig's folder."""
    return {
        f"{name}/{language}": _COMPILER.format(language=language, target=base.target)
        for name, base in zig.bases.items()
        for language in ("cc", "c++")
    }
