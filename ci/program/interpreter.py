"""A Python that runs on any Linux with the C library of the base, in a folder that can be moved.

It is compiled from source with zig cc, which links for an older glibc. OpenSSL, zlib and libffi are
linked into it. The modules that the program does not need are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli

from tsuku_publish.building.bases import WantedBase, make_base
from tsuku_publish.building.matrix import load_matrix

GLIBC = "2.17"
"""The C library that the interpreter needs at least; pip takes packages for it, too."""
BASE = f"glibc-{GLIBC}"
"""The base of ``tsuku_publish.building`` whose compiler links for it."""
PREFIX = "/usr/lib/tsuku-llm/python"
"""Where the .deb has the interpreter. It finds its modules by the place of its own file."""
SOURCES = Path(__file__).with_name("sources.toml")
LEFT_OUT = (
    *("_bz2", "_curses", "_curses_panel", "_dbm", "_gdbm", "_lzma", "_sqlite3", "_tkinter"),
    *("_uuid", "readline"),
)
"""Modules that need libraries which the program does without."""
UNUSED = (
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo"),
    *("turtle.py", "__phello__", "_pyrepl", "curses", "dbm", "sqlite3"),
)
"""Parts of the standard library that nothing of the program imports."""


def make_interpreter(work: Path) -> Path:
    """Return the folder of the interpreter, with ``bin`` and ``lib``; it is compiled if it is new.

    ``work`` keeps it for the next run.
    """
    key = hashlib.sha256(Path(__file__).read_bytes() + SOURCES.read_bytes()).hexdigest()[:12]
    made = work / f"python-{key}"
    if made.exists():
        return made
    sources = tomli.loads(SOURCES.read_text("utf-8"))
    build = work / "build"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    fetch_sources(sources, work / "sources")
    zig = compilers(work)
    environ = os.environ | {
        "SOURCE_DATE_EPOCH": "0",  # OpenSSL and Python note a date
        "ZIG_GLOBAL_CACHE_DIR": str(work / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(work / "zig-cache"),
        "CC": str(zig / BASE / "cc"),
        "CXX": str(zig / BASE / "c++"),
        "AR": f"{zig}/ziglang/zig ar",
        "RANLIB": f"{zig}/ziglang/zig ranlib",
        # No path of this machine gets into the files, and nothing of its libraries.
        # zig refuses the macros for dates; clang takes SOURCE_DATE_EPOCH for them.
        "CFLAGS": f"-O2 -fPIC -fno-sanitize=all -Wno-date-time -ffile-prefix-map={work}=/build",
        "PKG_CONFIG_LIBDIR": f"{build}/deps/lib/pkgconfig",
        "MAKEFLAGS": f"-j{os.cpu_count()}",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    for name, how in (
        ("zlib", _ZLIB),
        ("libffi", _LIBFFI),
        ("openssl", _OPENSSL),
        ("python", _PYTHON),
    ):
        print(f"compiling {name} {sources[name]['version']}", flush=True)
        source = build / name
        source.mkdir()
        archive = work / "sources" / sources[name]["file"]
        run(
            ["tar", "-x", "-f", archive, "-C", source, "--strip-components=1"], build, environ, name
        )
        for command in how:
            words = [
                word.format(deps=build / "deps", prefix=PREFIX, out=build / "out")
                for word in command
            ]
            run(words, source, environ, name)
    installed = build / "out" / PREFIX.lstrip("/")
    _leave_out(installed, work)
    installed.rename(made)
    shutil.rmtree(build)
    return made


_ZLIB = (
    ("./configure", "--prefix={deps}", "--static"),
    ("make", "install"),
)
_LIBFFI = (
    ("autoreconf", "--install", "--force"),
    ("./configure", "--prefix={deps}", "--libdir={deps}/lib", "--disable-shared", "--disable-docs"),
    ("make", "install"),
)
_OPENSSL = (
    (
        *("./Configure", "linux-x86_64", "--prefix={deps}", "--libdir=lib"),
        # Where Debian, and with links others, have their certificates.
        *("--openssldir=/etc/ssl", "no-shared", "no-module", "no-legacy", "no-tests", "no-docs"),
        *("no-apps", "no-engine", "no-dso"),
    ),
    ("make", "build_libs"),
    ("make", "install_dev"),
)
_PYTHON = (
    (
        *("./configure", "--prefix={prefix}", "--with-openssl={deps}", "--with-openssl-rpath=no"),
        *("--without-ensurepip", "--disable-test-modules"),
        *("OPT=-DNDEBUG", "LDFLAGS=-s", "LINKFORSHARED=-rdynamic"),
        *(f"py_cv_module_{name}=n/a" for name in LEFT_OUT),
    ),
    ("make",),
    ("make", "install", "DESTDIR={out}"),
)


def fetch_sources(sources: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Let apt fetch the original archives that are not there, and compare their digests."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in sources.values():
        if not (folder / each["file"]).exists():
            _fetch(each, folder)
        if not (folder / each["file"]).exists():
            sys.exit(
                f"Debian's {each['suite']} has another release of {each['package']} than "
                f"{each['file']}: name it and its digest in {SOURCES.name}"
            )
        found = hashlib.sha256((folder / each["file"]).read_bytes()).hexdigest()
        if found != each["sha256"]:
            sys.exit(f"{folder / each['file']} is not what {SOURCES.name} names: it has {found}")


def _fetch(source: Mapping[str, str], folder: Path) -> None:
    """Let apt fetch one, with lists apart from the machine's own, from the machine's own mirror."""
    apt = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"]
    known = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    if not known:
        sys.exit("apt knows no mirror of Debian: run apt-get update")
    lists = apt / f"{source['suite']}.list"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    lists.write_text(f"deb-src [signed-by={keys}] {known[0]} {source['suite']} main\n", "utf-8")
    options = [
        *("-o", f"Dir::Etc::SourceList={lists}", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    run(["apt-get", "-q", *options, "update"], folder, os.environ, source["package"])
    # A suite may have several revisions, and its newest may have another archive, or not be there.
    asked = ["apt-cache", *options, "showsrc", "--only-source", source["package"]]
    shown = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False).stdout
    for paragraph in shown.split("\n\n"):
        if f" {source['file']}\n" in paragraph:
            version = re.findall(r"^Version: (.*)$", paragraph, re.MULTILINE)[0]
            # Only the original archive: mirrors drop the files of older Debian revisions.
            words = ["source", "--download-only", "--tar-only", f"{source['package']}={version}"]
            run(["apt-get", "-q", *options, *words], folder, os.environ, source["package"])
            return


def compilers(work: Path) -> Path:
    """Return the folder with zig's compilers; pip fetches it once, by its digest."""
    zig = load_matrix().zig
    root = work / f"zig-{zig.version}-{zig.sha256[:12]}"
    if not root.is_dir():
        make_base(WantedBase(BASE, root, zig, (zig.requirement,)), os.environ, print)
    return root


def run(command: Sequence[str | Path], folder: Path, environ: Mapping[str, str], what: str) -> None:
    """Run a step; print what it said and exit if it fails."""
    log = folder.with_name(f"{what}.log") if folder.name == what else folder / f"{what}.log"
    with log.open("ab") as out:
        code = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,
        ).returncode
    if code:
        sys.stderr.write(log.read_text("utf-8", "replace")[-4000:])
        sys.exit(f"{what}: exit code {code} from {command[0]}; its log is {log}")


def _leave_out(installed: Path, work: Path) -> None:
    """Remove what the program never uses, and the name of the work folder from what stays."""
    library = next(installed.glob("lib/python3.*"))
    for name in (*UNUSED, *(path.name for path in library.glob("config-3.*"))):
        path = library / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in (installed / "include", installed / "share", installed / "lib/pkgconfig"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (*installed.glob("bin/*"), *installed.glob("lib/*.a")):
        if path.name != "python3" and not path.name.removeprefix("python3.").isdigit():
            path.unlink()
    for path in installed.rglob("__pycache__"):
        shutil.rmtree(path)
    for path in library.glob("_sysconfigdata*"):
        path.write_text(path.read_text("utf-8").replace(str(work), "/build"), "utf-8")
