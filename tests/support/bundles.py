"""Bundles of a shop in a folder, and a package index with what the program needs."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

from support.package_index import PackageIndex

from tsuku_llm import __version__
from tsuku_llm.fetch.places.bundle_file import (
    DESCRIPTION,
    START,
    BundleDescription,
    BundledProgram,
)
from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.probe import platform_key
from tsuku_llm.steps.program.signed_program import parse_lock
from tsuku_operator.bundle import bundle_start
from tsuku_operator.bundle.bundle_writer import describe, written_bundle
from tsuku_operator.bundle.own_wheel import packed, wheel_of

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class ProgramShop:
    """The wheels of the program and of its packages, as this environment has them.

    The lock names the same packages as the real one, with the digests of these wheels.
    """

    def __init__(self, folder: Path) -> None:
        self.index = PackageIndex(folder)
        self.wheel = folder.parent / f"tsuku_llm-{__version__}-py3-none-any.whl"
        self.wheel.write_bytes(packed(program_files()))
        blocks = []
        for locked in parse_lock((ROOT / "installer/tsuku_llm/locked.txt").read_text("utf-8")):
            marker = locked.requirement.marker
            if marker is not None and not marker.evaluate():
                continue
            name, data = wheel_of(distribution(locked.name))
            (folder / name).write_bytes(data)
            version = distribution(locked.name).version
            digest = hashlib.sha256(data).hexdigest()
            needed_by = "".join(f"\n    #   {each}" for each in locked.needed_by)
            blocks.append(
                f"{locked.name}=={version} \\\n    --hash=sha256:{digest}\n    # via{needed_by}\n"
            )
        self.lock = "".join(sorted(blocks))

    @property
    def environ(self) -> Mapping[str, str]:
        return self.index.environ


def program_files() -> dict[str, bytes]:
    """The files of a wheel of the program, taken from the source: a build would take seconds."""
    files = {}
    for package in ("tsuku_llm", "tsuku_operator"):
        for path in sorted((ROOT / "installer" / package).rglob("*")):
            if path.suffix in (".py", ".typed", ".txt", ".toml", ".json"):
                files[path.relative_to(ROOT / "installer").as_posix()] = path.read_bytes()
    for path in sorted((ROOT / "manifests").rglob("*")):
        if path.suffix in (".py", ".json"):
            files[f"tsuku_llm/{path.relative_to(ROOT).as_posix()}"] = path.read_bytes()
    info = f"tsuku_llm-{__version__}.dist-info"
    needs = re.findall(r'^    "([a-z][\w.-]*(?:\[[a-z]+\])?)>=', _dependencies(), re.MULTILINE)
    lines = ["Metadata-Version: 2.1", "Name: tsuku-llm", f"Version: {__version__}"]
    lines += [f"Requires-Dist: {each}" for each in needs]
    files |= {
        f"{info}/METADATA": "\n".join([*lines, "", ""]).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\ntsuku-llm = tsuku_llm.cli.main:main\n",
    }
    return _recorded_anew(files)


def small_bundle(path: Path, main: str = "") -> Path:
    """Make a bundle with the program and pip alone, whose packages the program lacks.

    So it takes a second to install. ``main`` is what ``tsuku-llm install`` does then.
    """
    files = program_files() | {
        "tsuku_llm/cli/main.py": f"def main():\n    {main or 'pass'}\n".encode()
    }
    name = f"tsuku_llm-{__version__}-py3-none-any.whl"
    pip, pip_wheel = wheel_of(distribution("pip"))
    wheels = {name: packed(_recorded_anew(files)), pip: pip_wheel}
    digest = hashlib.sha256(wheels[name]).hexdigest()
    program = BundledProgram(
        platform_key(LocalHost()),
        PYTHON,
        "programs/x.txt",
        tuple(f"wheels/{each}" for each in wheels),
    )
    about = BundleDescription(
        __version__, "x", "0" * 64, ("https://x.invalid",), "", (), (program,)
    )
    with written_bundle(path) as bundle:
        bundle.add(DESCRIPTION, describe(about))
        bundle.add(START, Path(bundle_start.__file__).read_bytes())
        bundle.add("programs/x.txt", f"tsuku-llm=={__version__} --hash=sha256:{digest}\n".encode())
        for each, data in wheels.items():
            bundle.add(f"wheels/{each}", data)
        bundle.finish()
    return path


def _recorded_anew(files: Mapping[str, bytes]) -> dict[str, bytes]:
    record = f"tsuku_llm-{__version__}.dist-info/RECORD"
    kept = {name: data for name, data in files.items() if name != record}
    rows = [f"{name},{_recorded(data)},{len(data)}\n" for name, data in kept.items()]
    return {**kept, record: "".join([*rows, f"{record},,\n"]).encode()}


def _recorded(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _dependencies() -> str:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    return text[text.index("\ndependencies") : text.index("\n[project.urls]")]


def run_bundle(
    bundle: Path, *words: str, env: Mapping[str, str], before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``sh FILE`` with a system's PATH; ``before`` are the words of another program."""
    return subprocess.run(
        [*before, "sh", str(bundle), *words],
        env={"PYTHON": sys.executable, **env, "PATH": f"/usr/sbin:{os.defpath}"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
