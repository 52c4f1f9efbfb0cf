"""What a build becomes: a tree to pack, its companions, its receipt and its bill of materials."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import drop_tree, rename
from tsuku_llm.ground.tree_entry import FileEntry, TreeEntry
from tsuku_publish.building.compiling import MAPS, RECEIPT, SBOM, TREE, FinishedBuild, Order
from tsuku_publish.building.matrix import BuildMatrix
from tsuku_publish.building.place import ToolPlace
from tsuku_publish.building.recipe import Recipe
from tsuku_publish.building.source import Source, copy_tree, own_name
from tsuku_publish.building.toolchain import Toolchain
from tsuku_publish.errors import BuildFailed
from tsuku_publish.packing.measuring import MeasuredBuild, measure_tree, server_of
from tsuku_publish.packing.tree import contents

FORMAT = 1
_LICENSES = ("LICENSE", "licenses")


def finish(
    order: Order,
    source: Source,
    matrix: BuildMatrix,
    folder: Path,
    into: Path,
    *,
    environ: Mapping[str, str],
    continued: bool,
) -> FinishedBuild:
    """Put a compiled build into ``into``/VARIANT, in one step; what was there before goes away.

    ``folder`` and ``environ`` are those of ``compile_variant``, and ``continued`` its answer.
    Raises ``BuildFailed`` for a build without a server, ``UsageError`` if something else has its
    name, and the errors of the disk.
    """
    recipe, toolchain = order.recipe, order.toolchain
    programs, target = folder / "build/bin", into / recipe.variant
    # One run at a time may use a work folder. So under a name that only this folder gives, there
    # can only be what a killed run left.
    place = hashlib.sha256(str((folder / "source").absolute()).encode()).hexdigest()[:16]
    beside = into / f".{recipe.variant}.{place}"
    drop_tree(beside)
    try:
        with disk_errors("copying the build", into):
            into.mkdir(parents=True, exist_ok=True)
            tree = beside / TREE
            # What the source made of this folder: a link there would copy files of ours.
            if programs.is_symlink():
                raise BuildFailed(f"{programs} is a link, and no folder of a build")
            copy_tree(programs, tree)
            _copy_licenses(folder / "source", tree)
            items, measured, companions = _completed(tree, recipe, toolchain, matrix)
        if server_of(items) is None:
            raise BuildFailed(
                f"the build of {recipe.variant} has no llama-server",
                facts=(f"folder: {programs}", f"log: {folder / 'build.log'}"),
                hint="name llama.cpp's source, with tools/server in it",
            )
        receipt = _receipt(order, source, environ, measured, companions)
        receipt["files"] = {item.path: item.sha256 for item in items if isinstance(item, FileEntry)}
        bill = _bill(order, source, items, companions)
        with disk_errors("writing the receipt", into):
            for name, content in ((RECEIPT, receipt), (SBOM, bill)):
                (beside / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
            _replace(beside, target)
    finally:
        drop_tree(beside)
    return FinishedBuild(target, measured, companions, continued)


def require_replaceable(target: Path) -> None:
    """Raise ``UsageError`` if a path is taken by something that this program did not make."""
    if target.is_symlink() or (target.exists() and not (target / RECEIPT).is_file()):
        raise UsageError(
            f"{target} is no build of this program, and it would be replaced",
            hint="name another folder with --into, or remove it",
        )


def _replace(beside: Path, target: Path) -> None:
    """Give a folder its name; one that has it already goes away."""
    older = beside.with_name(f"{beside.name}.older")
    drop_tree(older)
    require_replaceable(target)
    # A folder cannot replace another one, so there is a moment without any. Never half of one.
    if target.exists():
        rename(target, older)
    rename(beside, target)
    drop_tree(older)


def _copy_licenses(source: Path, tree: Path) -> None:
    for name in _LICENSES:
        if (source / name).is_symlink() and not (source / name).resolve().is_relative_to(
            source.resolve()
        ):
            continue
        if (source / name).is_file():
            shutil.copyfile(source / name, tree / name)
        elif (source / name).is_dir():
            copy_tree(source / name, tree / name)


def _completed(
    tree: Path, recipe: Recipe, toolchain: Toolchain, matrix: BuildMatrix
) -> tuple[tuple[TreeEntry, ...], MeasuredBuild, tuple[str, ...]]:
    """Copy the toolkit's libraries that the build needs, and then those that they need.

    What no folder of the toolkit has stays missing, as ``measure`` says.
    """
    folders = _companion_folders(recipe, toolchain, matrix)
    added: list[str] = []
    while True:
        items = contents(tree)
        measured = measure_tree(tree, items)
        new = [name for name in measured.missing if _copied(name, folders, tree, toolchain.place)]
        added += new
        if not new:
            return items, measured, tuple(sorted(added))


def _companion_folders(recipe: Recipe, toolchain: Toolchain, matrix: BuildMatrix) -> list[Path]:
    found = []
    for name in recipe.backends:
        backend = matrix.backends[name]
        tool = next(filter(None, map(toolchain.get, backend.tools)), None)
        if tool:
            # The compiler is in the folder bin of its toolkit; its PATH entry may be a link.
            place = toolchain.place
            base = place.within(place.outside(tool.path).parent.parent)
            found += [base / folder for folder in backend.companions]
    return found


def _copied(name: str, folders: list[Path], tree: Path, place: ToolPlace) -> bool:
    for folder in folders:
        # Links of a base stay in it: on this machine they could lead to a file of ours.
        real = place.outside(folder / name)
        if real.is_file() and not real.is_symlink():
            shutil.copy(real, tree / real.name)
            if real.name != name:
                (tree / name).symlink_to(real.name)
            return True
    return False


def _receipt(
    order: Order,
    source: Source,
    environ: Mapping[str, str],
    measured: MeasuredBuild,
    companions: tuple[str, ...],
) -> dict[str, Any]:
    recipe = order.recipe
    return {
        "format": FORMAT,
        "variant": recipe.variant,
        "backends": recipe.backends,
        "source": {
            # Not where it is: that differs between machines.
            "name": own_name(Path(source.name)),
            "archive_sha256": source.archive_sha256,
            "sha256": source.sha256,
            "release": source.number,
            "commit": source.commit,
        },
        "time": _when(source.time),
        "image": {"platform": recipe.platform, **order.toolchain.place.described()},
        "cmake": order.cmake,
        "flags": (*recipe.flags, *MAPS, *recipe.link_flags),
        "environment": order.toolchain.place.deciding(environ),
        "toolchain": [
            {
                "name": tool.name,
                "version": tool.version,
                "path": order.toolchain.place.named(tool.path),
                "says": tool.text.partition("\n")[0],
            }
            for tool in order.toolchain.tools
        ],
        "measured": asdict(measured),
        "companions": companions,
    }


def _bill(
    order: Order, source: Source, items: tuple[TreeEntry, ...], companions: tuple[str, ...]
) -> dict[str, Any]:
    """Return a CycloneDX bill of materials: the source, the tools, and every file."""
    recipe = order.recipe
    version = source.release or "unknown"
    files = [item for item in items if isinstance(item, FileEntry)]
    identity = f"{source.sha256}/{recipe.variant}/" + "".join(item.sha256 for item in files)
    llama = {
        "type": "application",
        "bom-ref": "llama.cpp",
        "name": "llama.cpp",
        "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
        "purl": "pkg:github/ggml-org/llama.cpp" + (f"@{version}" if source.release else ""),
        "hashes": _hashes(source.archive_sha256) if source.archive_sha256 else [],
        "properties": [{"name": "tsuku:source-sha256", "value": source.sha256}],
    }
    tools: list[dict[str, Any]] = [
        {"type": "application", "name": tool.name, "version": tool.version or "unknown"}
        for tool in order.toolchain.tools
    ]
    image = order.toolchain.place.described()
    if name := image.get("base"):
        system, _, number = name.partition("-")
        tools.append({"type": "operating-system", "name": system, "version": number or "unknown"})
    if number := image.get("zig"):
        target = [{"name": "tsuku:target", "value": image["target"]}]
        tools.append(
            {"type": "application", "name": "zig", "version": number, "properties": target}
        )
    tools += [
        {"type": "library", "name": name, "version": version}
        for name, version in image.get("packages", {}).items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Reproducible: the same build has the same number.
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "timestamp": _when(source.time),
            "tools": {"components": tools},
            "component": {
                "type": "application",
                "bom-ref": "build",
                "name": f"llama.cpp-{recipe.variant}",
                "version": version,
            },
        },
        "components": [llama, *(_file(item, companions) for item in files)],
        "dependencies": [{"ref": "build", "dependsOn": ["llama.cpp"]}],
    }


def _file(item: FileEntry, companions: tuple[str, ...]) -> Mapping[str, Any]:
    stem = item.path.partition(".so")[0]
    # A companion is known by its soname, and the file has a longer name.
    foreign = any(name.partition(".so")[0] == stem for name in companions)
    return {
        "type": "file",
        "name": item.path,
        "hashes": _hashes(item.sha256),
        "properties": [{"name": "tsuku:origin", "value": "toolkit" if foreign else "source"}],
    }


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _when(time: int) -> str:
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
