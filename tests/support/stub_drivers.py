"""Driver libraries from a few lines of C, which the child loads as it loads real ones.

One library per API, built once; what it does is said by the environment (see c/stub.h).
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.tools import require_tool

from tsuku_llm.machine.host import LocalHost

SOURCES = Path(__file__).parent / "c"
LIBRARIES = {
    "cuda": "libcuda.so.1",
    "nvml": "libnvidia-ml.so.1",
    "vulkan": "libvulkan.so.1",
    "hip": "libamdhip64.so.7",
    "level_zero": "libze_loader.so.1",
    "opencl": "libOpenCL.so.1",
}


class StubDrivers:
    """A folder with one subfolder per API, filled when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def library(self, api: str) -> Path:
        """The built library of one API."""
        path = self._folder / api / LIBRARIES[api]
        if not path.exists():
            build(SOURCES / f"{api}.c", path)
        return path

    def library_needing(self, name: str) -> Path:
        """A library that cannot load, as it needs one of that name, which is nowhere."""
        needed = self._folder / "gone" / name
        path = self._folder / "needing" / f"{name}.needing.so"
        if not path.exists():
            build(SOURCES / "hip.c", needed)
            build(SOURCES / "hip.c", path, "-Wl,--no-as-needed", str(needed))
            needed.unlink()
        return path

    def none_installed(self) -> Path:
        """A folder that hides the drivers of the machine that the tests run on.

        Its libraries fail for want of another one, whose name makes the dynamic linker say
        what it says of a library that is not there.
        """
        folder = self._folder / "none"
        if not folder.exists():
            folder.mkdir()
            for name in LIBRARIES.values():
                (folder / name).symlink_to(self.library_needing(f"no {name}"))
        return folder

    def only(
        self,
        *apis: str,
        root: Path,
        environ: Mapping[str, str] | None = None,
        **settings: object,
    ) -> LocalHost:
        """Return a machine with only these drivers, whatever is installed here."""
        path = self.searched(*apis)
        return self.host(root=root, environ=path | dict(environ or {}), **settings)

    def searched(self, *apis: str) -> dict[str, str]:
        """Return the variable with which a loader finds these drivers, and no other ones."""
        folders = [*(self.library(api).parent for api in apis), self.none_installed()]
        return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}

    def host(
        self,
        *apis: str,
        root: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: object,
    ) -> LocalHost:
        """A machine with these drivers; ``settings`` are the stubs' (``cuInit=999``)."""
        folders = ":".join(str(self.library(api).parent) for api in apis)
        stub = {f"STUB_{name}": str(value) for name, value in settings.items()}
        return LocalHost(root, {"LD_LIBRARY_PATH": folders, **stub, **(environ or {})})


def build(source: Path, library: Path, *options: str) -> None:
    """Compile a shared library."""
    library.parent.mkdir(parents=True, exist_ok=True)
    compiler = require_tool("gcc")
    command = [compiler, "-O0", "-Wall", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(
        [*command, f"-Wl,-soname,{library.name}", str(source), "-o", str(library), *options],
        check=True,
    )
