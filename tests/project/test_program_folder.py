"""The program without Python: its launcher, and the same bytes from the same files."""

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


def test_a_source_that_the_suite_no_longer_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite that is not stable has the newest alone: apt then fetches another archive."""
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text("#!/bin/sh\necho http://debian.example/debian/\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    source = {"package": "zlib", "suite": "sid", "file": "zlib_1.orig.tar.gz", "sha256": "0"}
    with pytest.raises(SystemExit) as ended:
        fetch_sources({"zlib": source}, tmp_path / "sources")
    assert ended.value.code == (
        "Debian's sid has another release of zlib than zlib_1.orig.tar.gz: name it and its digest "
        "in sources.toml"
    )
