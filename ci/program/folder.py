"""The folder of the program: an interpreter, the locked packages, and what a shell and man read."""

from __future__ import annotations

import email
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ci.program.interpreter import GLIBC
from tsuku_llm.machine.own_copy import FOLDER
from tsuku_llm.steps.program.signed_program import parse_lock
from tsuku_operator.bundle.program_wheels import ProgramTarget, needed_there

PLATFORM = "linux-x86_64"
_HERE = Path(__file__).parent
_COMPLETIONS = {
    "bash": "bash-completion/completions/tsuku-llm",
    "zsh": "zsh/vendor-completions/_tsuku-llm",
    "fish": "fish/vendor_completions.d/tsuku-llm.fish",
}
"""Where Debian's shells look for the words of a program, below /usr/share."""
_CONTROL = """\
Package: tsuku-llm
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {size}
Depends: libc6 (>= {glibc}), libgomp1
Recommends: ca-certificates
Section: misc
Priority: optional
Homepage: https://tsuku.dev/tsuku-llm
Description: install and run the llama.cpp server that fits this machine
 It picks, downloads, verifies, installs, updates and launches the build of
 llama.cpp's server that fits this machine's GPU. Python is a part of it.
"""


def make_folder(interpreter: Path, wheel: Path, scratch: Path) -> Path:
    """Put the interpreter, the packages of the wheel's lock and the wheel into a folder."""
    version = wheel.name.split("-")[1]
    folder = scratch / f"tsuku-llm-{version}-{PLATFORM}"
    home = folder / "python"
    shutil.copytree(interpreter, home, symlinks=True)
    _install(home, wheel, scratch)
    shutil.copy(_HERE / "tsuku-llm", folder)
    with zipfile.ZipFile(wheel) as opened:
        (folder / "LICENSE").write_bytes(
            opened.read(f"tsuku_llm-{version}.dist-info/licenses/LICENSE")
        )
    # The wheel's pages: man looks in share/man beside a folder of the PATH, not in Python's.
    (home / "share").rename(folder / "share")
    for shell, place in _COMPLETIONS.items():
        path = folder / "share" / place
        path.parent.mkdir(parents=True)
        words: list[str | Path] = [folder / "tsuku-llm", "completion", shell]
        path.write_bytes(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    return folder


def _install(home: Path, wheel: Path, scratch: Path) -> None:
    """Let pip fetch the locked wheels for the oldest C library, and install them and ours."""
    library = next(home.glob("lib/python3.*"))
    target = ProgramTarget("linux-amd64", library.name.removeprefix("python"), GLIBC)
    with zipfile.ZipFile(wheel) as opened:
        lock = parse_lock(opened.read("tsuku_llm/locked.txt").decode())
    asked = scratch / "requirements.txt"
    asked.write_text("".join(f"{each.pin}\n" for each in needed_there(lock, target)), "utf-8")
    wheels = scratch / "wheels"
    fetch: list[str | Path] = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--dest",
        wheels,
    ]
    fetch += ["--no-deps", "--require-hashes", "--only-binary=:all:", *target.options]
    subprocess.run([*fetch, "-r", asked], check=True)
    shutil.copy(wheel, wheels)
    version = wheel.name.split("-")[1]
    with asked.open("a", encoding="utf-8") as out:
        digest = subprocess.run(
            ["sha256sum", wheel], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()[0]
        out.write(f"tsuku-llm=={version} --hash=sha256:{digest}\n")
    (pip,) = wheels.glob("pip-*.whl")
    python = home / "bin/python3"
    install: list[str | Path] = [
        python,
        "-I",
        pip / "pip",
        "--isolated",
        "install",
        "--no-index",
        "--no-compile",
    ]
    install += ["--no-deps", "--require-hashes", "--no-warn-script-location", "--quiet"]
    install += ["--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run([*install, f"--find-links={wheels}", "-r", asked], check=True)
    for path in home.glob("bin/*"):
        # Scripts that name the folder in which they were made; pip is called as a module.
        if not path.name.startswith("python3"):
            path.unlink()
    (library / "EXTERNALLY-MANAGED").write_text(_MANAGED, "utf-8")
    (own,) = library.glob("site-packages/tsuku_llm-*.dist-info")
    (own / "INSTALLER").write_text(f"{FOLDER}\n", "utf-8")
    # Never compared with the sources again, so neither times nor rights count, and none is written.
    # One process and one seed for hashes: the same sources give the same bytes.
    compile_all: list[str | Path] = [
        python,
        "-I",
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode=unchecked-hash",
    ]
    compile_all += ["-s", home, "-p", "/usr/lib/tsuku-llm/python", library]
    subprocess.run(compile_all, env=os.environ | {"PYTHONHASHSEED": "0"}, check=True)


_MANAGED = """\
[externally-managed]
Error=This Python is a part of tsuku-llm: its packages are replaced with it.
"""


def make_archive(folder: Path, out: Path, time: int) -> Path:
    """Pack the folder, in the order of the names, with the time of the commit and no user."""
    made = out / f"{folder.name}.tar.gz"
    with (
        made.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in (folder, *sorted(folder.rglob("*"))):
            entry = archive.gettarinfo(path, str(path.relative_to(folder.parent)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = time
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
    return made


def make_deb(folder: Path, out: Path, time: int, scratch: Path, maintainer: str = "") -> Path:
    """Pack the folder as a Debian package, with the man page and completions where Debian looks.

    ``maintainer`` is a name with an address, as Debian wants it; by default the wheel's author,
    which has no address.
    """
    version = folder.name.split("-")[2]
    root = scratch / "deb"
    shutil.copytree(folder, root / "usr/lib/tsuku-llm", symlinks=True)
    inside = root / "usr/lib/tsuku-llm"
    (inside / "share").rename(root / "usr/share")
    (own,) = inside.glob("python/lib/python3.*/site-packages/tsuku_llm-*.dist-info")
    (own / "INSTALLER").write_text("dpkg\n", "utf-8")
    author = email.message_from_string((own / "METADATA").read_text("utf-8"))["Author"]
    (page,) = root.glob("usr/share/man/man1/*.1")
    page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
    page.unlink()
    about = root / "usr/share/doc/tsuku-llm"
    about.mkdir(parents=True)
    (inside / "LICENSE").rename(about / "copyright")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/tsuku-llm").symlink_to("../lib/tsuku-llm/tsuku-llm")
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        _CONTROL.format(version=version, size=size, glibc=GLIBC, maintainer=maintainer or author),
        "utf-8",
    )
    for path in (root, *root.rglob("*")):
        os.utime(path, (time, time), follow_symlinks=False)  # dpkg-deb only makes newer ones older
    made = out / f"tsuku-llm_{version}_amd64.deb"
    command: Sequence[str | Path] = ["dpkg-deb", "--root-owner-group", "--build", root, made]
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(time)}
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    return made
