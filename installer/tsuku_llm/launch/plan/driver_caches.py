"""The drivers' caches of compiled code: the variables that name their folders. Pure.

A GPU driver compiles shaders and kernels when they are first used, for seconds to a minute. It
keeps them on the disk only where it finds a folder that it accepts. NVIDIA's finds none for root,
and most drivers find none in services and containers without a home. So each start names a folder
for every driver that the backend may use. What the user's environment says always counts.

Not in the table: OpenVINO's cache (``GGML_OPENVINO_CACHE_DIR``), because users of it have met
wrong results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.machine.backends import facts_of

LIMIT = 1 << 30
"""Bytes that one driver may keep; most drivers remove the oldest code beyond it."""


class DriverCache(NamedTuple):
    """One driver's cache. ``name`` is its folder's name, ``driver`` what people call the driver.

    ``places`` are the variables that name the folder; we set the first one. ``given`` are further
    variables that we set with it. ``switches`` are the variables that can turn the cache off,
    each with the values that do so, in lower case. ``trims``: the driver itself keeps the cache
    below the limit that we give it. ``keeps_all``: what it compiles is always kept, so an empty
    folder shows that it compiled nothing. ``source`` is where the variables are documented.
    """

    name: str
    driver: str
    places: tuple[str, ...]
    given: Mapping[str, str] = {}
    switches: Mapping[str, frozenset[str]] = {}
    trims: bool = True
    keeps_all: bool = False
    source: str = ""


_NO = frozenset({"0", "false", "no", "n", "f", "off"})
_YES = frozenset({"1", "true", "yes", "y", "t", "on"})

TABLE = (
    DriverCache(
        "nvidia-gl",
        "NVIDIA's Vulkan driver",
        ("__GL_SHADER_DISK_CACHE_PATH",),
        # Off for root unless it is asked for.
        given={"__GL_SHADER_DISK_CACHE": "1", "__GL_SHADER_DISK_CACHE_SIZE": str(LIMIT)},
        switches={"__GL_SHADER_DISK_CACHE": _NO},
        source="README of NVIDIA's driver for Linux, chapter on OpenGL environment variables",
    ),
    DriverCache(
        "nvidia-compute",
        "NVIDIA's compiler of CUDA and OpenCL",
        ("CUDA_CACHE_PATH",),
        given={"CUDA_CACHE_MAXSIZE": str(LIMIT)},
        switches={"CUDA_CACHE_DISABLE": _YES},
        keeps_all=True,
        source="CUDA C++ Programming Guide, environment variables",
    ),
    DriverCache(
        "mesa",
        "Mesa",
        # The second one is the name before Mesa 22.1.
        ("MESA_SHADER_CACHE_DIR", "MESA_GLSL_CACHE_DIR"),
        given={"MESA_SHADER_CACHE_MAX_SIZE": f"{LIMIT >> 20}M"},
        switches={"MESA_SHADER_CACHE_DISABLE": _YES, "MESA_GLSL_CACHE_DISABLE": _YES},
        source="docs/envvars.rst of Mesa",
    ),
    DriverCache(
        "intel-neo",
        "Intel's compute runtime",
        ("NEO_CACHE_DIR",),
        given={"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_MAX_SIZE": str(LIMIT)},
        switches={"NEO_CACHE_PERSISTENT": _NO},
        source="programmers-guide/COMPILER_CACHE.md of intel/compute-runtime",
    ),
    DriverCache(
        "intel-sycl",
        "Intel's SYCL runtime",
        ("SYCL_CACHE_DIR",),
        # In megabytes.
        given={"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_MAX_SIZE": str(LIMIT >> 20)},
        switches={"SYCL_CACHE_PERSISTENT": _NO},
        source="sycl/doc/EnvironmentVariables.md of intel/llvm",
    ),
    DriverCache(
        "amd-comgr",
        "AMD's compiler (Comgr)",
        ("AMD_COMGR_CACHE_DIR",),
        given={"AMD_COMGR_CACHE_POLICY": f"prune_interval=1h:cache_size_bytes={LIMIT >> 20}m"},
        switches={"AMD_COMGR_CACHE": _NO},
        source="amd/comgr/README.md of ROCm/llvm-project",
    ),
    DriverCache(
        "pocl",
        "PoCL",
        ("POCL_CACHE_DIR",),
        # No switch: with POCL_KERNEL_CACHE=0 it still needs the folder, for its own files.
        trims=False,
        source="doc/sphinx/source/env_variables.rst of PoCL",
    ),
    DriverCache(
        "ggml-opencl",
        "ggml's OpenCL backend",
        # Without it the backend uses a folder in /tmp, which any user can make first.
        ("GGML_OPENCL_KERNEL_CACHE_DIR",),
        trims=False,
        source="ggml/src/ggml-opencl/cl-program-cache.h of llama.cpp",
    ),
)

_BY_NAME = {cache.name: cache for cache in TABLE}


def caches_of(backend: str) -> tuple[DriverCache, ...]:
    """Return the caches of the drivers that a build with this backend may use."""
    return tuple(_BY_NAME[name] for name in facts_of(backend).caches)


def switched_off(cache: DriverCache, environ: Mapping[str, str]) -> str | None:
    """Return the user's setting that turns a cache off, such as ``CUDA_CACHE_DISABLE=1``."""
    return next(
        (
            f"{name}={environ[name]}"
            for name, values in cache.switches.items()
            if environ.get(name, "").strip().lower() in values
        ),
        None,
    )


def users_place(cache: DriverCache, environ: Mapping[str, str]) -> str | None:
    """Return the user's setting that names the cache's folder, as ``NAME=VALUE``."""
    return next((f"{name}={environ[name]}" for name in cache.places if name in environ), None)


def may_compile(
    backend: str, verdict: Verdict = Verdict.UNKNOWN, *, machine_code: bool, noted: bool
) -> bool:
    """Tell whether a driver may have code to compile for a start: only then is it warmed up.

    ``machine_code``: the build is known to have it for each device that it uses. ``noted``: an
    earlier start of the same kind was warmed up. Where the processor computes a part, as the
    ``verdict`` of a loaded server tells, prompts cost more than the driver's compiler does.
    """
    on_processor = backend == "cpu" or verdict in (Verdict.ON_CPU, Verdict.PARTLY)
    return not (on_processor or machine_code or noted)


def kept_or_nothing(backend: str, *, kept: bool) -> bool:
    """Tell whether a warmed-up start needs no other warm-up: the code is kept, or there is none.

    The drivers were given a folder: only one that ``keeps_all`` there can tell the latter.
    """
    return kept or all(cache.keeps_all for cache in caches_of(backend))


def cache_variables(backend: str, environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return the variables that a build gets in addition to ``environ``; none of the user's.

    ``root`` is the folder in which each driver gets its own one.
    """
    added: dict[str, str] = {}
    for cache in caches_of(backend):
        # A user who turned the cache off, or named a folder for it, has chosen.
        if not (switched_off(cache, environ) or users_place(cache, environ)):
            added[cache.places[0]] = str(root / cache.name)
            added |= {name: each for name, each in cache.given.items() if name not in environ}
    return added
