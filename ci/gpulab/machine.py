"""The program installed from wheels into its own environment, and a new home for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
_DRIVERS = (
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json",
)
_MINUTES = 240
"""Seconds for one command, so that a script that hangs ends."""


@dataclass(frozen=True)
class Done:
    """The result of a command: its exit code, the JSON document that it printed, its stderr."""

    code: int
    document: Mapping[str, Any]
    stderr: str

    @property
    def data(self) -> Mapping[str, Any]:
        """The document's ``data``, or an empty table."""
        return self.document.get("data") or {}

    @property
    def told(self) -> dict[str, object]:
        """The exit code and the error."""
        return {"exit_code": self.code, "error": self.document.get("error")}


@dataclass(frozen=True)
class Machine:
    """The program's folder, and the environments with and without the loader's libraries."""

    folder: Path
    command: Path
    env: Mapping[str, str]
    bare: Mapping[str, str]

    def program(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """Run the program to its end, with ``--json`` among the words."""
        done = subprocess.run(
            [self.command, *words],
            env=dict(self.env if env is None else env),
            capture_output=True,
            text=True,
            timeout=_MINUTES,
            check=False,
        )
        try:
            document = json.loads(done.stdout)
        except ValueError:
            document = {"error": done.stderr[-2000:]}
        return Done(done.returncode, document, done.stderr)


def prepare(root: Path, folders: Sequence[Path], folder: Path, hardware: Path | None) -> Machine:
    """Install the program from the folders' wheels and unpack the loader's libraries."""
    folders = [each.resolve() for each in folders]
    wheels = folder / "wheels"
    wheels.mkdir()
    for first in sorted(path for each in folders for path in each.glob("*.whl.part-00")):
        _join(folders, first.name.removesuffix(".part-00"), wheels)
    venv.create(folder / "venv", with_pip=True)
    places = [word for each in (*folders, wheels) for word in ("--find-links", str(each))]
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", "--no-index", *places]
    subprocess.run([*pip, root, root / "installer/publish"], check=True, stdout=sys.stderr)
    loaders = folder / "loaders"
    for package in (path for each in folders for path in sorted(each.glob("*.deb"))):
        subprocess.run(["dpkg", "-x", package, loaders], check=True)
    bare = {
        # The user's own settings of this program, and modules of ours, must not change the result.
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TSUKU_") and name != "PYTHONPATH"
        },
        "TSUKU_HOME": str(folder / "home"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": " ".join(map(str, (*folders, wheels))),
    }
    (folder / "home").mkdir(mode=0o755)
    folder.chmod(0o755)
    return Machine(folder, folder / "venv/bin/tsuku-llm", _with(loaders, bare, hardware), bare)


def _join(folders: Sequence[Path], name: str, target: Path) -> None:
    pieces = sorted(path for each in folders for path in each.glob(f"{name}.part-*"))
    with (target / name).open("wb") as whole:
        for piece in sorted(pieces, key=lambda path: path.name):
            whole.write(piece.read_bytes())


def _with(loaders: Path, bare: Mapping[str, str], hardware: Path | None) -> dict[str, str]:
    """Return the environment in which a GPU can be used through Vulkan."""
    env = dict(bare)
    paths = [str(loaders / each) for each in _LIBRARIES if (loaders / each).is_dir()]
    env["LD_LIBRARY_PATH"] = ":".join([*paths, *filter(None, [env.get("LD_LIBRARY_PATH")])])
    driver = next((path for path in _DRIVERS if Path(path).exists()), None)
    if driver:
        env.setdefault("VK_DRIVER_FILES", driver)
    if hardware:
        env |= {
            "TSUKU_LLM_FAKE_HARDWARE": str(hardware.resolve()),
            "GGML_VK_VISIBLE_DEVICES": "0",
        }
    return env
