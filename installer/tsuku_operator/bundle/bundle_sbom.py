"""The list of what is in a bundle, as a CycloneDX 1.6 document (JSON). Pure.

The same content gives the same document: its serial number comes from the digests, and it has no
time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""The namespace of URLs (RFC 9562)."""


@dataclass(frozen=True, slots=True)
class SbomWheel:
    """A wheel: the file, its project and version, and the projects that it needs."""

    file: str
    project: str
    version: str
    sha256: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SbomArchive:
    """An archive of builds: its name and digest, and who made it."""

    name: str
    sha256: str
    release: str
    publisher: str
    url: str
    builds: tuple[str, ...]


def sbom(version: str, wheels: Sequence[SbomWheel], archives: Sequence[SbomArchive]) -> bytes:
    """Return the document of a bundle that a program of this version made."""
    components = [_wheel(each) for each in wheels] + [_archive(each) for each in archives]
    digests = ",".join(sorted(str(each["bom-ref"]) for each in components))
    refs: dict[str, list[str]] = {}
    for each in wheels:
        refs.setdefault(each.project, []).append(_ref(each.sha256))
    needs = {
        _ref(each.sha256): sorted({ref for name in each.needs for ref in refs.get(name, ())})
        for each in wheels
    }
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digests)}",
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
        "dependencies": _dependencies(needs, [str(each["bom-ref"]) for each in components]),
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def _dependencies(needs: Mapping[str, list[str]], parts: Iterable[str]) -> list[dict[str, Any]]:
    known = {"bundle": sorted(parts), **needs}
    return [{"ref": ref, "dependsOn": known[ref]} for ref in sorted(known)]


def _wheel(wheel: SbomWheel) -> dict[str, Any]:
    purl = f"pkg:pypi/{wheel.project}@{quote(wheel.version)}?file_name={quote(wheel.file)}"
    return {
        **_component("library", wheel.project, wheel.version, wheel.sha256),
        "purl": purl,
    }


def _archive(archive: SbomArchive) -> dict[str, Any]:
    made = _component("application", archive.name, archive.release, archive.sha256)
    reference = {"type": "distribution", "url": archive.url}
    builds = [{"name": "tsuku-llm:build", "value": build} for build in archive.builds]
    return {
        **made,
        "publisher": archive.publisher,
        "externalReferences": [reference],
        "properties": builds,
    }


def _component(kind: str, name: str, version: str, sha256: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": _ref(sha256),
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _ref(sha256: str) -> str:
    return f"sha256:{sha256}"
