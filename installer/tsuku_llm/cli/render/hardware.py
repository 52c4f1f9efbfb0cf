"""What a machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsuku_llm.cli.render.text import size, table
from tsuku_llm.hardware import Api, ApiState, Gpu, Hardware, Problem


def data(hardware: Hardware, record: Path | None) -> dict[str, Any]:
    """The machine for programs, field by field."""
    return {"platform": hardware.platform, "hardware": hardware, "recorded": record}


def lines(hardware: Hardware, record: Path | None) -> tuple[str, ...]:
    """The machine for people."""
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
    """Every named situation of the machine and its fix."""
    return tuple(
        line
        for problem in hardware.all_problems
        for line in (named(problem), f"  fix: {problem.fix}")
    )


def named(problem: Problem) -> str:
    """A situation by its name; one that passes is not to be taken for the machine's nature."""
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
    target = gpu.compute_capability or gpu.gfx or gpu.api_version or ""
    return (f"{gpu.api} {gpu.index}", gpu.kind.value, gpu.name, memory, target)
