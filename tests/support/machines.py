"""Machines and releases as values, for tests of pure code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tsuku_llm.catalog.manifest import Release, parse_release
from tsuku_llm.machine.hardware import Api, ApiState, Cpu, Gpu, GpuKind, Hardware, Libc
from tsuku_llm.trust import VerifiedBytes

CUDA_13 = {
    "toolkit": "13.4",
    "sass": ["8.6", "8.9", "12.0a", "12.1a"],
    "ptx": ["7.5", "8.0", "9.0"],
}
CUDA_12 = {
    "toolkit": "12.8",
    "sass": ["8.6", "8.9", "12.0a"],
    "ptx": ["5.0", "6.1", "7.0", "7.5", "8.0", "9.0"],
}
OLD_FLOOR = {"glibc": "2.34", "libstdcxx": "3.4.30"}
NEW_FLOOR = {"glibc": "2.38", "libstdcxx": "3.4.32"}


def linux_variants() -> dict[str, dict[str, Any]]:
    """The variants of a release for linux-amd64, with upstream's real requirements."""
    return {
        "vulkan": variant("vulkan", {**OLD_FLOOR, "vulkan": "1.2"}),
        "cuda-13.4": variant("cuda", {**NEW_FLOOR, "cuda": CUDA_13}),
        "cuda-12.8": variant("cuda", {**NEW_FLOOR, "cuda": CUDA_12}),
        "rocm-10.0": variant(
            "rocm", {**NEW_FLOOR, "rocm": {"runtime": "10.0", "gfx": ["gfx1030", "gfx1100"]}}
        ),
        "cpu": variant("cpu", dict(OLD_FLOOR)),
    }


def variant(backend: str, requires: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "backend": backend,
        "server": "llama-server",
        "requires": dict(requires),
        "artifacts": [
            {
                "url": f"https://example.invalid/{backend}.tar.gz",
                "sha256": "0" * 64,
                "size": 1000,
                "format": "tar.gz",
                "root": "llama",
            }
        ],
    }


def full_artifact(digest: str) -> dict[str, Any]:
    """Return an artifact with every field that a manifest may have."""
    return {
        "url": "https://host/a.tar.gz",
        "sha256": digest,
        "size": 5,
        "format": "tar.gz",
        "root": "llama-b2",
        "files": [{"path": "bin/x", "size": 1, "sha256": digest, "executable": True}],
        "links": [{"path": "libx.so", "target": "libx.so.0"}],
        "pieces": {"size": 65536, "sha256": [digest]},
    }


def release_dict(
    variants: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any
) -> dict[str, Any]:
    return {
        "format": 1,
        "release": "b1",
        "version": "0.1.0",
        "publisher": "tests",
        "published": "2026-01-01",
        "platforms": {
            "linux-amd64": {
                "default": "cpu",
                "preference": {
                    "portable": ["vulkan", "cuda", "rocm", "sycl", "opencl", "cpu"],
                    "native": ["cuda", "rocm", "sycl", "vulkan", "opencl", "cpu"],
                },
                "variants": dict(variants or linux_variants()),
            }
        },
        **changes,
    }


def release(variants: Mapping[str, Mapping[str, Any]] | None = None) -> Release:
    return parse_release(VerifiedBytes(json.dumps(release_dict(variants)).encode()))


def machine(*apis: Api, **changes: Any) -> Hardware:
    facts: dict[str, Any] = {
        "os": "linux",
        "arch": "amd64",
        "libc": Libc("glibc", "2.39"),
        "libstdcxx": "3.4.33",
        "cpu": Cpu("GenuineIntel", "a processor", (), 3),
        "memory": 32 << 30,
        **changes,
    }
    return Hardware(apis=apis, **facts)


def cuda(capability: str = "8.9", version: str = "13.4", **changes: Any) -> Api:
    gpu = Gpu("cuda", 0, "NVIDIA X", GpuKind.DISCRETE, 24 << 30, compute_capability=capability)
    return Api("cuda", ApiState.OK, "libcuda.so.1", version, gpus=changes.pop("gpus", (gpu,)))


def vulkan(*kinds: GpuKind, version: str = "1.3", device: str = "1.3") -> Api:
    gpus = tuple(
        Gpu("vulkan", index, f"{kind.value} {index}", kind, 24 << 30, api_version=device)
        for index, kind in enumerate(kinds or (GpuKind.DISCRETE,))
    )
    return Api("vulkan", ApiState.OK, "libvulkan.so.1", version, gpus=gpus)


def rocm(gfx: str) -> Api:
    gpu = Gpu("rocm", 0, "AMD X", GpuKind.DISCRETE, 16 << 30, gfx=gfx)
    return Api("rocm", ApiState.OK, "libamdhip64.so.7", "7.0", gpus=(gpu,))
