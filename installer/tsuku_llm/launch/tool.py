"""The plan for a build's other tools (llama-cli, llama-bench), and a check of their folder.

A tool gets its arguments unchanged and stays in the user's folder: only the tool knows which
of them are paths (llama-quantize IN OUT). ggml also looks for plugins in the working folder.
So other users must not be able to put files into it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tsuku_llm.errors import UnsafeLocation
from tsuku_llm.launch.planning import Build, Plan, environment

_PLUGIN = re.compile(r"(?:lib)?ggml-.*\.(?:so|dll|dylib)", re.IGNORECASE)
"""The names that ``ggml_backend_load_best`` loads as plugins (ggml-backend-reg.cpp)."""

_DEVICE = "LLAMA_ARG_DEVICE"
"""The variable that the tools with llama-server's options read; the others ignore it."""


def plan_tool(
    build: Build, arguments: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> Plan:
    """Plan a tool's start; ``build.server`` is the tool.

    The build's device is passed in the environment, because not every tool takes
    ``--device``. A device on the command line overrides it.
    """
    env = environment(environ, build)
    # A device that the user has set in the environment counts, too.
    if build.device is not None:
        env.setdefault(_DEVICE, build.device)
    return Plan((str(build.executable), *arguments), cwd, env, build.backend)


def require_no_plugins(folder: Path) -> None:
    """Refuse a working folder that contains ggml plugins, or to which every user can write.

    Raises UnsafeLocation. A folder that cannot be listed is accepted: ggml cannot list it
    either.
    """
    if sys.platform != "win32" and folder.stat().st_mode & stat.S_IWOTH:
        raise UnsafeLocation(
            f"every user can write a plugin for the tool into {folder}",
            facts=(f"mode: {stat.filemode(folder.stat().st_mode)}",),
            hint="change to a folder of your own, and give paths of files from there",
        )
    try:
        found = sorted(filter(_PLUGIN.fullmatch, os.listdir(folder)))  # noqa: PTH208  # names
    except PermissionError:
        return
    if found:
        raise UnsafeLocation(
            f"the tool would load {found[0]} from the current folder",
            facts=(f"folder: {folder}",),
            hint="change to another folder, and give paths of files from there",
        )
