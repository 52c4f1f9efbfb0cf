"""CMake's run in a folder that is kept: it continues where an earlier run was interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.files import drop_tree, write_output
from tsuku_llm.ground.foreign import read_text
from tsuku_llm.ground.records import documented
from tsuku_publish.building.matrix import numbers
from tsuku_publish.building.recipe import Recipe
from tsuku_publish.building.running import run_logged
from tsuku_publish.building.source import Source, copy_source
from tsuku_publish.building.toolchain import Toolchain
from tsuku_publish.packing.measuring import MeasuredBuild

_LANGUAGES = ("C", "CXX")
_HIP_COMMAND = (
    "<CMAKE_HIP_COMPILER> <DEFINES> <INCLUDES> <FLAGS> "
    "-cuid=<OBJECT> -o <OBJECT> -x hip -c <SOURCE>"
)
"""CMake's own rule for HIP, with an id of each file: clang would make it of the file's path."""

_SEEDED = (12, 9)
"""From this version on, nvcc takes a seed for names that else have its process id."""

MAPS = ("-ffile-prefix-map=SOURCE=source", "-ffile-prefix-map=BUILD=build")
"""Flags of each build: with them, no file has the paths of its two folders."""

TREE, RECEIPT, SBOM = "tree", "receipt.json", "sbom.cdx.json"


@documented("tree", "receipt", "sbom", "continued", "companions", "measured")
@dataclass(frozen=True, slots=True)
class FinishedBuild:
    """A variant that is built: its folder has ``tree``, the receipt and the SBOM.

    ``companions`` are the libraries of the toolkit that the tree brings along. ``continued`` is
    whether an earlier run had begun it.
    """

    folder: Path
    measured: MeasuredBuild
    companions: tuple[str, ...]
    continued: bool

    @property
    def tree(self) -> Path:
        """The folder of programs."""
        return self.folder / TREE

    @property
    def receipt(self) -> Path:
        """What it was made of and with."""
        return self.folder / RECEIPT

    @property
    def sbom(self) -> Path:
        """Its bill of materials."""
        return self.folder / SBOM


@documented("*recipe", "*toolchain", "cmake", "result")
@dataclass(frozen=True, slots=True)
class Order:
    """A variant to build: what CMake is told, the tools of this machine, and the source.

    Without a source it can only be shown. ``result`` is None until it is built. ``install`` is the
    command for what is missing, None if it is not known. ``base`` is None for a build with this
    machine's own tools. ``cmake`` are arguments.
    """

    recipe: Recipe
    toolchain: Toolchain
    source: Source | None
    result: FinishedBuild | None = None

    @property
    def cmake(self) -> tuple[str, ...]:
        """CMake's arguments, in an order that never changes."""
        definitions = dict(self.recipe.definitions)
        if source := self.source:
            # CMake would ask git, which answers for any repository around the folder.
            definitions.setdefault("LLAMA_BUILD_NUMBER", str(source.number))
            definitions.setdefault("LLAMA_BUILD_COMMIT", source.commit)
        return (
            f"-G{self.recipe.generator}",
            *(f"-D{name}={value}" for name, value in sorted(definitions.items())),
        )


def compile_variant(
    order: Order, source: Source, folder: Path, jobs: int, environ: Mapping[str, str]
) -> bool:
    """Compile a variant in a folder that this process holds; return whether it continued a run.

    What an earlier run left there is used if source, flags and tools are the same, and thrown away
    otherwise. Afterwards ``build/bin`` has the programs, ``source`` the source that was compiled,
    and ``build.log`` what the compilers said. Raises ``BuildFailed``, ``NoSpace``, and the errors
    of the disk.
    """
    recipe = order.recipe
    flags = (*recipe.flags, *MAPS)
    key = _key(order, source, order.toolchain.place.deciding(environ))
    note = folder / "key.json"
    continued = False
    with contextlib.suppress(OSError):
        continued = read_text(note) == key and (folder / "source").is_dir()
    if not continued:
        with disk_errors("removing an older build", folder):
            # First: an interruption from here on must not leave a note for what is gone.
            note.unlink(missing_ok=True)
            for name in ("build", "source", "build.log"):
                path = folder / name
                drop_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
        copy_source(source, folder / "source")
        write_output(note, key)
    # A compiler that is killed leaves its temporary files: here the next run removes them.
    temporary = folder / "tmp"
    with disk_errors("making a folder for the compilers", folder):
        if temporary.is_dir():
            drop_tree(temporary)
        temporary.mkdir()
    place = order.toolchain.place
    here = place.inside(folder)
    places = {"SOURCE": str(here / "source"), "BUILD": str(here / "build")}
    told = [f"-DCMAKE_{language}_FLAGS={_told(flags, places)}" for language in _LANGUAGES]
    if "cuda" in recipe.backends:
        # nvcc hands them to a shell of its own.
        host = [f"-Xcompiler={shlex.quote(_placed(flag, places))}" for flag in flags]
        told += _cuda_told(order, host, environ)
    if "rocm" in recipe.backends:
        # Not the processor's flags: most of this code is for the card.
        told.append(f"-DCMAKE_HIP_FLAGS={_told(MAPS, places)}")
        told.append(f"-DCMAKE_HIP_COMPILE_OBJECT={_HIP_COMMAND}")
    linked = " ".join(recipe.link_flags)
    told += [f"-DCMAKE_{kind}_LINKER_FLAGS={linked}" for kind in ("EXE", "SHARED", "MODULE")]
    told += place.told()
    surroundings = {
        **place.environment(environ),
        "LC_ALL": "C",
        "TMPDIR": str(here / temporary.name),
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(source.time),
        "GIT_CEILING_DIRECTORIES": str(here),
    }
    cmake = order.toolchain.get("cmake")
    program = str(cmake.path) if cmake else "cmake"
    log = folder / "build.log"
    doing = f"building {recipe.variant}"
    for command in (
        [program, "-S", places["SOURCE"], "-B", places["BUILD"], *order.cmake, *told],
        [program, "--build", places["BUILD"], "--parallel", str(jobs)],
    ):
        words = place.argv(command, folder)
        run_logged(words, doing=doing, log=log, folder=folder, environ=surroundings)
    return continued


def _cuda_told(order: Order, host: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return what CMake is told so that no process id of nvcc and no folder gets into a file.

    nvcc names its temporary files after its process, and writes these names into objects; its
    option puts them beside the object, under its name. Names of functions that only one file has
    get the file's name and a hash of its path, which cudafe++ is told to be the same everywhere.
    They also get a seed, or else the process id: then each nvcc runs in a namespace of its own,
    where the ids are the same each time. ccache must not be in it: what it starts depends on its
    cache.
    """
    flags = ["--objdir-as-tempdir", "-Xcudafe=--orig_src_path_name=source"]
    nvcc, place = order.toolchain.get("nvcc"), order.toolchain.place
    launcher: Sequence[str] = ()
    if nvcc and numbers(nvcc.version) >= _SEEDED:
        flags.append("--frandom-seed=llama.cpp")
    else:
        launcher = place.own_processes(place.environment(environ))
    told = [f"-DCMAKE_CUDA_FLAGS={shlex.join([*flags, *host])}"]
    return [*told, f"-DCMAKE_CUDA_COMPILER_LAUNCHER={';'.join(launcher)}"] if launcher else told


def _key(order: Order, source: Source, deciding: Mapping[str, str]) -> str:
    """Return what decides a build's bytes, as text: equal keys may share a folder."""
    tools = [
        [each.name, str(each.path), each.text or each.version] for each in order.toolchain.tools
    ]
    content = {
        "source": source.sha256,
        "time": source.time,
        "arguments": order.cmake,
        "recipe": {**asdict(order.recipe), "notes": []},
        "tools": tools,
        "environment": deciding,
        "place": order.toolchain.place.described(),
    }
    return json.dumps(content, indent=1, sort_keys=True, default=dict) + "\n"


def _told(flags: Sequence[str], places: Mapping[str, str]) -> str:
    """Return flags as the value of a variable of CMake.

    CMake hands it to a shell as it is, and a folder's name may have spaces. But it takes away
    quotes around a whole value, so the value begins with a space.
    """
    return f" {shlex.join(_placed(flag, places) for flag in flags)}"


def _placed(flag: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        flag = flag.replace(f"={name}=", f"={path}=")
    return flag


def processors() -> int:
    """Return how many files are compiled at the same time by default."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
