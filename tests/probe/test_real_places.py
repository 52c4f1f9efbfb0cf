"""Real chroots and containers, entered by the tools that make them: the place and its fix.

Each root is a folder with the system's own programs, bound into it. A tool that is missing, or that
may not do its work here, skips its tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.tools import require_tool

import tsuku_llm

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="places of Linux")

_PACKAGE = Path(tsuku_llm.__file__).parents[1]
_BOUND = tuple(
    dict.fromkeys(
        str(path)
        for path in (
            *("/usr", Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()),
            *(_PACKAGE, Path(sys.executable).resolve().parent),
        )
        if not str(path).startswith("/usr/")
    )
)
"""What the program needs of this machine's files."""

_ENTER = """\
set -e
root=$0 how=$1
shift
[ "$how" = plain ] || mount --bind "$root" "$root"
while [ "$1" != -- ]; do mount --rbind "$1" "$root$1"; shift; done
shift
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" "$@"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the places to bind to, and nothing that names a container."""
    root = tmp_path / "root"
    for name in ("proc", "dev", "sys", "tmp", "run", "var", "etc", *(p[1:] for p in _BOUND)):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        # As they are here: merged with /usr or not.
        if Path(f"/{name}").is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("os-release", "passwd", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    return root


def _program(*words: str) -> list[str]:
    variables = {"TSUKU_HOME": "/home", "PYTHONPATH": str(_PACKAGE)}
    given = [f"{name}={value}" for name, value in variables.items()]
    return ["env", "-i", *given, sys.executable, "-m", "tsuku_llm", *words]


def _place(enter: Sequence[str]) -> str:
    """Enter, ask the program where it is, and return the kind of the place."""
    if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"{enter[0]} may not do this here")
    done = subprocess.run(
        [*enter, *_program("probe", "--json")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    hardware: dict[str, Any] = json.loads(done.stdout)["data"]["hardware"]
    return str(hardware["place"]["kind"])


@pytest.mark.parametrize("how", ["plain", "bound"])
def test_a_chroot(root: Path, how: str) -> None:
    """A folder as it is, and one that was mounted on itself, as arch-chroot and schroot do."""
    unshare = [require_tool("unshare"), "--mount", "--map-root-user"]
    assert _place([*unshare, "sh", "-c", _ENTER, str(root), how, *_BOUND, "--"]) == "chroot"


def test_a_sandbox_of_bubblewrap() -> None:
    links = [("--symlink", f"usr/{name}", f"/{name}") for name in ("bin", "lib", "lib64")]
    binds = [("--ro-bind", path, path) for path in _BOUND]
    words = [word for each in (*links, *binds) for word in each]
    own = ["--proc", "/proc", "--dev", "/dev", "--unshare-all"]
    assert _place([require_tool("bwrap"), *words, *own]) == "bubblewrap"


def test_a_container_of_systemd_nspawn(root: Path) -> None:
    binds = [f"--bind-ro={path}" for path in _BOUND]
    own = ["--quiet", "--register=no", "--keep-unit", "--directory", str(root)]
    assert _place([require_tool("systemd-nspawn"), *own, *binds]) == "nspawn"


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_of_podman(root: Path, runtime: str) -> None:
    """Without its variable, as in a shell over ssh; podman is too large for CI."""
    podman = shutil.which("podman")
    if podman is None or shutil.which(runtime) is None:
        pytest.skip(f"podman with {runtime} is not here")
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    volumes = [word for path in _BOUND for word in ("--volume", f"{path}:{path}:ro")]
    own = ["--runtime", runtime, "run", "--rm", "--network", "none", "--cgroupns", "host"]
    assert _place([podman, *own, *limits, *volumes, "--rootfs", str(root)]) == "podman"
