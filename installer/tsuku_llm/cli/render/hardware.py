"""The hardware of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsuku_llm.cli.render.text import size, table
from tsuku_llm.hardware import Api, ApiState, Gpu, Hardware, Problem


def data(hardware: Hardware, record: Path | None) -> dict[str, Any]:
    """Return the machine for programs, field by field."""
    return {"platform": hardware.platform, "hardware": hardware, "recorded": record}


def lines(hardware: Hardware, record: Path | None) -> tuple[str, ...]:
    """Return the machine for people."""
    # Leave out APIs that do not exist on this operating system.
    asked = [api for api in hardware.apis if api.state is not ApiState.NOT_ASKED]
    gpus = [gpu for api in asked for gpu in api.gpus]
    return (
        *table(list(_system(hardware).items()), indent=0),
        *(("driver APIs:", *table([_api(api) for api in asked])) if asked else ()),
        *(("devices:", *table([_gpu(gpu) for gpu in gpus])) if gpus else ("devices: none",)),
        *problems(hardware),
        *((f"recorded in {record}",) if record else ()),
    )


def problems(hardware: Hardware) -> tuple[str, ...]:
    """Return every known problem of the machine and its fix."""
    return tuple(
        line
        for problem in hardware.all_problems
        for line in (named(problem), f"  fix: {problem.fix}")
    )


def named(problem: Problem) -> str:
    """Return a problem with its name, marked as temporary if it will pass."""
    return f"{problem.slug}{' (temporary)' if problem.transient else ''}: {problem.text}"


def _system(hardware: Hardware) -> dict[str, str]:
    libc, cpu = hardware.libc, hardware.cpu
    facts = {
        "simulated": hardware.simulated,
        "platform": hardware.platform,
        "system": hardware.os_version,
        "libc": f"{libc.name} {libc.version or ''}" if libc else None,
        "libstdc++": f"GLIBCXX {hardware.libstdcxx}" if hardware.libstdcxx else None,
        "processor": cpu.name if cpu else None,
        "level": f"x86-64-v{cpu.level}" if cpu and cpu.level else None,
        "memory": size(hardware.memory) if hardware.memory else None,
    }
    return {name: value for name, value in facts.items() if value}


def _api(api: Api) -> tuple[str, ...]:
    return (api.name, api.state.value, api.version or "", api.driver or "", api.library or "")


def _gpu(gpu: Gpu) -> tuple[str, ...]:
    memory = size(gpu.memory) if gpu.memory is not None else ""
    # What builds are made for: CUDA's compute capability, AMD's gfx name, else the API version.
    target = gpu.compute_capability or gpu.gfx or gpu.api_version or ""
    return (f"{gpu.api} {gpu.index}", gpu.kind.value, gpu.name, memory, target)
