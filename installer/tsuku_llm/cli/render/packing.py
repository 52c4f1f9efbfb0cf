"""Packed builds."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.text import size, table
from tsuku_llm.operations.packing import PackedArchive, PackReport


def data(report: PackReport) -> dict[str, Any]:
    """Return the variant and its archives for programs."""
    return {
        "release": report.release,
        "platform": report.platform,
        "variant": report.variant,
        "archives": [_archive(each) for each in report.archives],
    }


def _archive(packed: PackedArchive) -> dict[str, Any]:
    artifact = packed.artifact
    return {
        "file": packed.path,
        "url": artifact.url,
        "sha256": artifact.sha256,
        "size": artifact.size,
        "written": packed.written,
    }


def lines(report: PackReport) -> tuple[str, ...]:
    """Return the archives for people, and what to do with them."""
    rows = [
        (each.path.name, size(each.artifact.size), "written" if each.written else "there already")
        for each in report.archives
    ]
    count = f"{len(rows)} archives" if len(rows) > 1 else "1 archive"
    where = f"{report.release}: {report.variant} for {report.platform}"
    return (
        *table(rows, indent=0),
        f"{where} consists of {count}; sign it, then publish it",
    )
