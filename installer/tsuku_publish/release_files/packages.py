"""Releases that a Python package index carries, from ``packages.toml``."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli

from tsuku_llm.catalog.manifest import Head
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.archives.contents import Contents
from tsuku_publish.errors import LARGEST_FILE, reading
from tsuku_publish.release_files.documents import artifact, document, recorded, requirements
from tsuku_publish.upstream.facts import Asset


def load_packages(
    data: Path, known: Collection[str], contents: Mapping[str, Contents]
) -> dict[str, dict[str, Any]]:
    """Return the release file's content of every wheel, by release; none without the file.

    ``known`` are the libraries that systems provide, ``contents`` records by SHA-256. Raises
    ``PublishError``.
    """
    path = data / "packages.toml"
    if not path.exists():  # a company that feeds upstream's builds has none
        return {}
    with reading(path):
        raw = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        return {
            wheel["release"]: _document(raw["project"], wheel, known, contents)
            for wheel in raw["wheel"]
        }


def _document(
    project: Mapping[str, Any],
    wheel: Mapping[str, Any],
    known: Collection[str],
    contents: Mapping[str, Contents],
) -> dict[str, Any]:
    order = project["preference"]
    platform = {
        "default": project["default"],
        "preference": {"portable": order, "native": order},
        "variants": {
            variant["name"]: _variant(project, wheel, variant, known, contents)
            for variant in project["variants"]
        },
    }
    head = Head(
        release=wheel["release"],
        publisher=project["publisher"],
        published=wheel["published"],
        unattested=project["unattested"],
    )
    return document(head, {project["platform"]: platform})


def _variant(
    project: Mapping[str, Any],
    wheel: Mapping[str, Any],
    variant: Mapping[str, Any],
    known: Collection[str],
    contents: Mapping[str, Contents],
) -> dict[str, Any]:
    # The CPU code was compiled for the machine that built this wheel, so it is a fact of the wheel.
    processor = {key: wheel[key] for key in ("x86_64_level", "cpu_features") if key in wheel}
    assumed = {**project["requires"], **processor, **variant.get("requires", {})}
    arguments = {"arguments": variant["arguments"]} if "arguments" in variant else {}
    url = f"pkg:pypi/{project['name']}@{wheel['version']}?file_name={quote(wheel['file'])}"
    asset = Asset(wheel["file"], url, wheel["sha256"], wheel["size"])
    record = contents.get(wheel["sha256"])
    return {
        "backend": variant["backend"],
        "server": project["server"],
        **arguments,
        "requires": requirements(assumed, recorded([wheel["sha256"]], contents), known),
        "artifacts": [artifact(asset, project["format"], project["root"], record)],
    }
