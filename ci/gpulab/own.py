"""A user's CUDA build next to the Vulkan build, in the user's signed repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from ci.gpulab.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
_NAME = "own"


def add_own_build(machine: Machine, cuda: Path, vulkan: Path) -> Machine:
    """Publish both trees as one release, and return a machine that trusts its repository."""
    toolkit, capability = _compiler(), _capability(machine)
    words = (str(machine.folder / "shop"), toolkit, capability, str(cuda), str(vulkan))
    # The publisher runs in the program's own environment, which then also needs the tests' pytest.
    python = machine.command.with_name("python")
    subprocess.run(
        [machine.command.with_name("pip"), "install", "-q", "--no-index", "pytest"],
        env=dict(machine.bare),
        check=True,
    )
    done = subprocess.run(
        [python, "-m", "ci.gpulab.publisher", *words],
        env={**machine.bare, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    told = json.loads(done.stdout)
    machine.program("repository", "add", _NAME, told["url"], "--root", told["root"], "--json")
    added = {"REPOSITORY": _NAME, "CHANNEL": "stable", "MIRROR": told["mirror"]}
    chosen = {f"TSUKU_LLM_{name}": value for name, value in added.items()}
    return replace(machine, env={**machine.env, **chosen})


def _compiler() -> str:
    """Return the toolkit version of the compiler that made the build, such as 13.0.

    It is the ``nvcc`` in the path.
    """
    told = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", told)
    return found[1] if found else "13.0"


def _capability(machine: Machine) -> str:
    apis = machine.program("probe", "--json").data["hardware"]["apis"]
    cuda = (gpu for api in apis for gpu in api["gpus"] if api["name"] == "cuda")
    return str(next(cuda)["compute_capability"])
