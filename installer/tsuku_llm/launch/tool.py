"""The start of a build's other tools (llama-cli, llama-bench): planned, and where it may be made.

A tool gets its arguments as they are and stays in the user's folder: what is a path among
them (llama-quantize IN OUT) only the tool knows. ggml looks for plugins in the working folder
too, so that folder has to be one in which nobody else can leave any.
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
"""What ``ggml_backend_load_best`` takes for a plugin, by name alone (ggml-backend-reg.cpp)."""

_DEVICE = "LLAMA_ARG_DEVICE"
"""Read by the tools that share llama-server's options, and by no other."""


def plan_tool(
    build: Build, arguments: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> Plan:
    """Put a tool's start together; ``build.server`` is the tool.

    The device that the build was chosen for is handed over in the environment: not every
    tool takes ``--device``, and what the user names on the command line counts before it.
    """
    env = environment(environ, build)
    if build.device is not None:
        env.setdefault(_DEVICE, build.device)
    return Plan((str(build.executable), *arguments), cwd, env, build.backend)


def require_no_plugins(folder: Path) -> None:
    """Refuse a working folder that has ggml plugins in it, or in which anybody may put some.

    Raises UnsafeLocation. A folder that cannot be listed has nothing that ggml could find.
    """
    if sys.platform != "win32" and folder.stat().st_mode & stat.S_IWOTH:
        raise UnsafeLocation(
            f"every user can put a plugin for the tool into {folder}",
            facts=(f"mode: {stat.filemode(folder.stat().st_mode)}",),
            hint="change to a folder of your own, and give paths of files from there",
        )
    try:
        found = sorted(filter(_PLUGIN.fullmatch, os.listdir(folder)))  # noqa: PTH208  # names
    except PermissionError:
        return
    if found:
        raise UnsafeLocation(
            f"the tool would load {found[0]} from the folder that you are in",
            facts=(f"folder: {folder}",),
            hint="change to another folder, and give paths of files from there",
        )
