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
from tsuku_publish.release_files.documents import artifact, document, requirements
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
    found = {}
    with reading(path):
        raw = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        project, order = raw["project"], raw["project"]["preference"]
        for wheel in raw["wheel"]:
            url = f"pkg:pypi/{project['name']}@{wheel['version']}?file_name={quote(wheel['file'])}"
            asset = Asset(wheel["file"], url, wheel["sha256"], wheel["size"])
            record = contents.get(asset.sha256)
            archive = artifact(asset, project["format"], project["root"], record)
            # The CPU code was compiled for the machine that built this wheel: a fact of the wheel.
            facts = ("x86_64_level", "cpu_features")
            assumed = project["requires"] | {key: wheel[key] for key in facts if key in wheel}
            variants = {}
            for variant in project["variants"]:
                named = {key: variant[key] for key in ("arguments",) if key in variant}
                requires = {**assumed, **variant.get("requires", {})}
                variants[variant["name"]] = {
                    "backend": variant["backend"],
                    "server": project["server"],
                    **named,
                    "requires": requirements(requires, [record] if record else [], known),
                    "artifacts": [archive],
                }
            platform = {
                "default": project["default"],
                "preference": {"portable": order, "native": order},
                "variants": variants,
            }
            head = Head(
                release=wheel["release"],
                publisher=project["publisher"],
                published=wheel["published"],
                unattested=project["unattested"],
            )
            found[wheel["release"]] = document(head, {project["platform"]: platform})
    return found
