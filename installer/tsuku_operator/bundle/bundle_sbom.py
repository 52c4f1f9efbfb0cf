"""The list of what is in a bundle, as a CycloneDX 1.6 document (JSON). Pure.

The same content gives the same document: its serial number comes from the digests, and it has no
time.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tsuku_llm.catalog.manifest import Artifact, Release
from tsuku_llm.fetch.http.urls import file_name
from tsuku_operator.bundle.bundle_choice import ChosenBuild


def sbom(version: str, wheels: Mapping[str, bytes], builds: Sequence[ChosenBuild]) -> bytes:
    """Return the document of a bundle that a program of this version made.

    ``wheels`` are those of the program, by their names.
    """
    components, needs = _wheels(wheels)
    components += _archives(builds)
    refs = sorted(str(each["bom-ref"]) for each in components)
    needs["bundle"] = refs
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ','.join(refs))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "bundle",
                "name": "tsuku-llm-bundle",
                "version": version,
            }
        },
        "components": sorted(components, key=lambda each: str(each["bom-ref"])),
        "dependencies": [{"ref": ref, "dependsOn": needs[ref]} for ref in sorted(needs)],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def _wheels(wheels: Mapping[str, bytes]) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Return the component of each wheel, and the references of what each needs."""
    components: list[dict[str, Any]] = []
    required: dict[str, set[str]] = {}
    refs: dict[str, set[str]] = {}
    for name, data in sorted(wheels.items()):
        project, version, *_ = parse_wheel_filename(name)
        made = _component("library", project, str(version), hashlib.sha256(data).hexdigest())
        made["purl"] = f"pkg:pypi/{project}@{quote(str(version))}?file_name={quote(name)}"
        components.append(made)
        required[made["bom-ref"]] = _needs(data)
        refs.setdefault(project, set()).add(made["bom-ref"])
    return components, {
        ref: sorted({found for project in projects for found in refs.get(project, ())})
        for ref, projects in required.items()
    }


def _needs(wheel: bytes) -> set[str]:
    """Return the projects that a wheel requires in some environment, without its extras."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        info = next(
            (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)), None
        )
        text = archive.read(info).decode("utf-8", "replace") if info else ""
    found: set[str] = set()
    for line in HeaderParser().parsestr(text).get_all("Requires-Dist", []):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if "extra" not in str(requirement.marker or ""):
            found.add(canonicalize_name(requirement.name))
    return found


def _archives(builds: Sequence[ChosenBuild]) -> list[dict[str, Any]]:
    """Return the component of each archive, with the builds that it belongs to."""
    found: dict[str, tuple[Artifact, Release]] = {}
    labels: dict[str, list[str]] = {}
    for build in builds:
        for artifact in build.variant.artifacts:
            found[artifact.sha256] = artifact, build.release
            label = f"{build.told.release} {build.told.platform} {build.told.variant}"
            labels.setdefault(artifact.sha256, []).append(label)
    return [
        {
            **_component("application", file_name(artifact.url), release.release, sha256),
            "publisher": release.publisher,
            "externalReferences": [{"type": "distribution", "url": artifact.url}],
            "properties": [{"name": "tsuku-llm:build", "value": each} for each in labels[sha256]],
        }
        for sha256, (artifact, release) in found.items()
    ]


def _component(kind: str, name: str, version: str, sha256: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": f"sha256:{sha256}",
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
