"""Releases whose only fault is an archive's content or the way a server sends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.repository import release_document

from ci.faultlab.bench import Bench

_CHANNEL = "faults"
"""Not the channel that updates read: other trials must not see these releases."""


def offer(bench: Bench, artifacts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Sign a release for each of these artifacts; return the tag of each case."""
    tags = dict(zip(artifacts, bench.new_tags(len(artifacts)), strict=True))
    for case, artifact in artifacts.items():
        variant = {"backend": "cpu", "server": "llama-server", "requires": {}}
        platform = {
            "default": "cpu",
            "preference": {"portable": ["cpu"], "native": ["cpu"]},
            "variants": {"cpu": {**variant, "artifacts": [dict(artifact)]}},
        }
        document = release_document(tags[case], platforms={"linux-amd64": platform})
        bench.shop.simulator.add(document, channels=[_CHANNEL])
    bench.shop.simulator.bump()
    bench.shop.write()
    return tags
