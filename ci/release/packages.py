"""Releases that a Python package index carries, from ``packages.toml``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli

from ci.release.build import artifact, document

PACKAGES = Path(__file__).parent / "packages.toml"


def load_packages(path: Path = PACKAGES) -> dict[str, dict[str, Any]]:
    """The release file's content of every wheel, by release."""
    raw = tomli.loads(path.read_text("utf-8"))
    return {wheel["release"]: _document(raw["project"], wheel) for wheel in raw["wheel"]}


def _document(project: Mapping[str, Any], wheel: Mapping[str, Any]) -> dict[str, Any]:
    order = project["preference"]
    platform = {
        "default": project["default"],
        "preference": {"portable": order, "native": order},
        "variants": {
            variant["name"]: _variant(project, wheel, variant) for variant in project["variants"]
        },
    }
    return document(
        release=wheel["release"],
        version=None,
        publisher=project["publisher"],
        published=wheel["published"],
        platforms={project["platform"]: platform},
    )


def _variant(
    project: Mapping[str, Any], wheel: Mapping[str, Any], variant: Mapping[str, Any]
) -> dict[str, Any]:
    measured = {key: wheel[key] for key in ("x86_64_level", "cpu_features") if key in wheel}
    arguments = {"arguments": variant["arguments"]} if "arguments" in variant else {}
    return {
        "backend": variant["backend"],
        "server": project["server"],
        **arguments,
        "requires": {**project["requires"], **measured, **variant.get("requires", {})},
        "artifacts": [_artifact(project, wheel)],
    }


def _artifact(project: Mapping[str, Any], wheel: Mapping[str, Any]) -> dict[str, Any]:
    return artifact(
        url=f"pkg:pypi/{project['name']}@{wheel['version']}?file_name={quote(wheel['file'])}",
        sha256=wheel["sha256"],
        size=wheel["size"],
        archive=project["format"],
        root=project["root"],
    )
