"""The program without Python: its launcher, and the same bytes from the same files."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli
from support.tools import require_tool

from ci.program.folder import make_archive, make_deb
from ci.program.interpreter import SOURCES, fetch_sources

LAUNCHER = SOURCES.with_name("tsuku-llm")
TIME = 1_764_000_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="made on Linux")


def a_folder(place: Path) -> Path:
    """A folder as ``make_folder`` makes it, with a stand-in for Python that prints its words."""
    folder = place / "tsuku-llm-1.2-linux-x86_64"
    about = folder / "python/lib/python3.13/site-packages/tsuku_llm-1.2.dist-info"
    for each in (about, folder / "python/bin", folder / "share/man/man1"):
        each.mkdir(parents=True)
    (about / "INSTALLER").write_text("tsuku-llm-folder\n")
    (about / "METADATA").write_text("Name: tsuku-llm\nAuthor: The tsuku-llm developers\n")
    (folder / "LICENSE").write_text("MIT\n")
    (folder / "share/man/man1/tsuku-llm.1").write_text(".TH TSUKU-LLM 1\n")
    shutil.copy(LAUNCHER, folder)
    python = folder / "python/bin/python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.mark.parametrize("called", ["link", "folder", "relative"])
def test_the_launcher_finds_its_own_python(tmp_path: Path, called: str) -> None:
    folder = a_folder(tmp_path / "my folder")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tsuku-llm").symlink_to(folder / "tsuku-llm")
    # A program of the caller's folder must not be run, though the PATH has that folder.
    (tmp_path / "readlink").write_text("#!/bin/sh\necho /none\n")
    (tmp_path / "readlink").chmod(0o755)
    word = {
        "link": "tsuku-llm",
        "folder": str(folder / "tsuku-llm"),
        "relative": "./my folder/tsuku-llm-1.2-linux-x86_64/tsuku-llm",
    }[called]
    done = subprocess.run(
        [word, "serve", "a b"],
        cwd=tmp_path,
        env={"PATH": f".:{programs}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = str(programs / "tsuku-llm") if called == "link" else word
    assert done.stdout.splitlines() == ["-I", shown, "serve", "a b"]


def test_the_launcher_is_a_python_file_too() -> None:
    compile(LAUNCHER.read_text("utf-8"), "tsuku-llm", "exec")


def test_the_same_files_give_the_same_archive_and_package(tmp_path: Path) -> None:
    require_tool("dpkg-deb")
    made = []
    for name in ("first", "second"):
        place = tmp_path / name
        folder = a_folder(place)
        out = place / "out"
        out.mkdir()
        os.utime(folder / "LICENSE", (len(made), len(made)))
        files = (make_archive(folder, out, TIME), make_deb(folder, out, TIME, place))
        made.append([path.read_bytes() for path in files])
    assert made[0] == made[1]


def test_the_package_has_the_program_and_its_page_where_debian_looks(tmp_path: Path) -> None:
    require_tool("dpkg-deb")
    deb = make_deb(a_folder(tmp_path), tmp_path, TIME, tmp_path)
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", deb, root], check=True)
    assert (root / "usr/bin/tsuku-llm").samefile(root / "usr/lib/tsuku-llm/tsuku-llm")
    assert (root / "usr/share/man/man1/tsuku-llm.1.gz").is_file()
    (installer,) = root.rglob("INSTALLER")
    assert installer.read_text() == "dpkg\n"


def test_every_source_has_a_digest() -> None:
    sources = tomli.loads(SOURCES.read_text("utf-8"))
    assert {*sources} == {"python", "openssl", "zlib", "libffi"}
    assert all(len(bytes.fromhex(each["sha256"])) == 32 for each in sources.values())


@pytest.mark.parametrize("given", ["", "A Company <it@company.example>"])
def test_the_maintainer_is_the_publisher_or_the_author_without_an_address(
    tmp_path: Path, given: str
) -> None:
    require_tool("dpkg-deb")
    made = make_deb(a_folder(tmp_path), tmp_path, TIME, tmp_path, given)
    asked = ["dpkg-deb", "--field", made, "Maintainer"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert said == f"{given or 'The tsuku-llm developers'}\n"


SHOWN = """\
Package: zlib
Version: 1:2-3
Files:
 00 7 zlib_2.orig.tar.gz

Package: zlib
Version: 1:1-2
Files:
 00 7 zlib_1.orig.tar.gz
 00 7 zlib_1-2.debian.tar.xz
"""
"""A suite with two releases, the newest first, as ``apt-cache showsrc`` writes them."""


@pytest.mark.parametrize(("file", "version"), [("zlib_1.orig.tar.gz", "1:1-2"), ("zlib_3", None)])
def test_a_source_is_found_among_the_releases_of_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, version: str | None
) -> None:
    """Debian 13 had two of openssl (3.5.7 and 3.5.9, 28 November 2026): apt takes the newest."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    fetched = f"echo http://debian.example/\necho $* >>{log}\ncase $* in *zlib=*) : >{file};; esac"
    for name, does in (("apt-get", fetched), ("apt-cache", f"cat <<EOF\n{SHOWN}EOF")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    nothing = hashlib.sha256(b"").hexdigest()
    source = {"package": "zlib", "suite": "sid", "file": file, "sha256": nothing}
    if version:
        fetch_sources({"zlib": source}, tmp_path / "sources")
        assert log.read_text().endswith(f"--tar-only zlib={version}\n")
        return
    with pytest.raises(SystemExit) as ended:
        fetch_sources({"zlib": source}, tmp_path / "sources")
    assert ended.value.code == (
        f"Debian's sid has another release of zlib than {file}: name it and its digest "
        "in sources.toml"
    )
