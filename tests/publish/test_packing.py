"""Builds are packed so that what did not change has the same bytes, and can be left out."""

import gzip
import hashlib
import io
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tsuku_llm.archive.unpack import make_links, unpack
from tsuku_llm.catalog.manifest import ARCHIVES, Artifact
from tsuku_llm.ground.errors import StoreError, UnsafeArchive, UsageError
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry
from tsuku_publish.packing.pack import PackedArchive, Place, pack_tree
from tsuku_publish.packing.parts import LARGE, parted
from tsuku_publish.packing.tarball import write_tarball
from tsuku_publish.packing.tree import contents

URL = "https://host.test/archives/"
LARGER = random.Random(1).randbytes(LARGE + 1)  # noqa: S311
PROGRAM = b"a program"

BUILD = {
    "llama-server": PROGRAM,
    "lib/libllama.so.0.1": b"small",
    "libggml-cuda.so.0.20": LARGER,
    "LICENSE": b"",
}
LINKS = {"libggml-cuda.so": "libggml-cuda.so.0", "libggml-cuda.so.0": "libggml-cuda.so.0.20"}


def write(
    folder: Path, files: Mapping[str, bytes] = BUILD, links: Mapping[str, str] = LINKS
) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if data == PROGRAM else 0o644)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    return folder


def packed(tree: Path, into: Path) -> tuple[PackedArchive, ...]:
    return pack_tree(tree, contents(tree), Place(into, URL))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """By which a web server tells one state of a file from another."""
    status = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (each.st_ino, each.st_mtime_ns) for name, each in status.items()}


def digests(archives: Sequence[PackedArchive]) -> dict[str, str]:
    return {each.file.name: each.artifact.sha256 for each in archives}


# --- the same content gives the same bytes ------------------------------------------------------


def test_the_same_build_gives_the_same_archives_wherever_it_was_made(tmp_path: Path) -> None:
    """Other times, modes, owners' masks, orders, and an empty folder more."""
    first = packed(write(tmp_path / "first"), tmp_path / "out-1")
    mask = os.umask(0o077)
    try:
        again = write(tmp_path / "again", dict(reversed(BUILD.items())))
        for number, path in enumerate(sorted(again.rglob("*"))):
            os.utime(path, (number, number), follow_symlinks=False)
        (again / "llama-server").chmod(0o655)
        (again / "LICENSE").chmod(0o600)
        (again / "empty").mkdir()
        second = packed(again, tmp_path / "out-2")
    finally:
        os.umask(mask)
    assert digests(first) == digests(second)
    assert [each.file.read_bytes() for each in first] == [each.file.read_bytes() for each in second]
    assert {each.file.stat().st_mode & 0o777 for each in second} == {0o644}


def test_the_bytes_do_not_depend_on_this_python(tmp_path: Path) -> None:
    """All but the deflating is fixed: the gzip header, and the tar within."""
    file = io.BytesIO()
    tree = write(tmp_path / "build")
    write_tarball(tree, contents(tree), file)
    assert file.getvalue()[:10].hex() == "1f8b08000000000000ff"
    tar = gzip.decompress(file.getvalue())
    assert hashlib.sha256(tar).hexdigest() == (
        "81905e544fde0ecccf6563249a9f2edb3f6b300ae7a743a0265f4eddc01ab072"
    )


def test_an_existing_archive_is_not_written_again(tmp_path: Path) -> None:
    tree, into = write(tmp_path / "build"), tmp_path / "out"
    first = packed(tree, into)
    assert all(each.written for each in first)
    before = stamps(into)
    assert not any(each.written for each in packed(tree, into))
    assert stamps(into) == before
    first[0].file.write_bytes(b"torn")
    assert [each.written for each in packed(tree, into)] == [True, False]
    assert {path.name for path in into.iterdir()} == digests(first).keys(), "nothing else is left"


def test_a_changed_file_changes_only_its_own_archive(tmp_path: Path) -> None:
    before = packed(write(tmp_path / "before"), tmp_path / "out")
    changed = {**BUILD, "lib/libllama.so.0.1": b"patched"}
    after = packed(write(tmp_path / "after", changed), tmp_path / "out")
    assert [each.written for each in after] == [False, True]
    assert before[0].artifact == after[0].artifact
    assert {file.path for file in after[1].artifact.files or ()} == {
        "llama-server",
        "lib/libllama.so.0.1",
        "LICENSE",
    }


def test_a_file_that_changes_while_it_is_packed_is_an_error(tmp_path: Path) -> None:
    tree = write(tmp_path / "build")
    items = contents(tree)
    for other in (b"small and more", b"smal", b"other"):
        (tree / "lib/libllama.so.0.1").write_bytes(other)
        with pytest.raises(UsageError, match="changed while it was packed"):
            pack_tree(tree, items, Place(tmp_path / "out", URL))
        assert not list((tmp_path / "out").glob("files-*"))
        assert not list((tmp_path / "out").glob(".*")), "nothing half written is left"


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limits")
def test_a_failed_write_is_that_of_the_archives_and_not_of_the_build(tmp_path: Path) -> None:
    import resource  # noqa: PLC0415 - Windows has none

    tree, into = write(tmp_path / "build"), tmp_path / "out"
    items = contents(tree)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, before[1]))
    try:
        with pytest.raises(StoreError, match="no file of this process may become larger") as error:
            pack_tree(tree, items, Place(into, URL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"folder: {into}" in error.value.facts
    assert not list(into.glob(".*")), "nothing half written is left"


# --- round trips --------------------------------------------------------------------------------


def test_a_packed_tree_unpacks_to_the_same_tree(tmp_path: Path) -> None:
    tree = write(tmp_path / "build")
    into = tmp_path / "unpacked"
    for each in packed(tree, tmp_path / "out"):
        unpack(each.file, each.artifact, into)
    assert contents(into) == contents(tree)
    assert (into / "llama-server").stat().st_mode & 0o777 == 0o755


def test_links_are_packed_as_unpacking_makes_them(tmp_path: Path) -> None:
    tree = write(tmp_path / "build")
    (library, _) = packed(tree, tmp_path / "out")
    supplied = write(tmp_path / "supplied", {"libggml-cuda.so.0.20": LARGER}, {})
    made = make_links(library.artifact, supplied)
    assert made == tuple(LinkEntry(*link) for link in sorted(LINKS.items()))
    assert (supplied / "libggml-cuda.so").read_bytes() == LARGER


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "nothing", "x"])
def test_A09_links_that_unpacking_refuses_are_not_packed(tmp_path: Path, target: str) -> None:
    artifact = Artifact(
        url=f"{URL}x.tar.gz",
        sha256="0" * 64,
        format="tar.gz",
        files=(FileEntry(path="file", size=1, sha256="0" * 64),),
        links=(LinkEntry(path="a", target="file"), LinkEntry(path="x", target=target)),
    )
    with pytest.raises(UnsafeArchive):
        make_links(artifact, tmp_path)
    assert not list(tmp_path.iterdir())


NAMES = st.from_regex(r"[x-z]{1,3}(/[x-z]{1,3})?\.so", fullmatch=True)
"""No name of them is that of a Windows device."""


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(NAMES, st.binary(max_size=3000), min_size=1, max_size=8))
def test_any_tree_survives_packing_and_unpacking(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    tree = write(folder / "build", files, {})
    file = io.BytesIO()
    write_tarball(tree, contents(tree), file)
    file.seek(0)
    entry = Artifact(url=f"{URL}x", sha256="0" * 64, size=len(file.getvalue()), format="tar.gz")
    assert unpack(file, entry, folder / "unpacked") == contents(tree)


# --- which files go together --------------------------------------------------------------------


def build_of(sizes: Sequence[tuple[int, int]], links: Sequence[int]) -> tuple[TreeEntry, ...]:
    """Files of a size and a content each, and links to some of them and to one another."""
    files = [
        FileEntry(f"f{number}", size, f"{size}-{content}", executable=False)
        for number, (size, content) in enumerate(sizes)
    ]
    found = [LinkEntry(f"l{n}", f"f{link % len(files)}") for n, link in enumerate(links)]
    chained = [LinkEntry(f"k{n}", link.path) for n, link in enumerate(found)]
    return (*files, *found, *chained)


SIZES = st.tuples(st.sampled_from([0, 1, LARGE - 1, LARGE, 5 * LARGE]), st.integers(0, 3))
BUILDS = st.builds(
    build_of, st.lists(SIZES, min_size=1, max_size=20), st.lists(st.integers(0, 99), max_size=6)
)


@given(items=BUILDS, limit=st.integers(1, ARCHIVES), chance=st.randoms())
def test_every_file_is_in_one_part_with_the_links_that_lead_to_it(
    items: tuple[TreeEntry, ...], limit: int, chance: random.Random
) -> None:
    parts = parted(items, limit)
    assert 1 <= len(parts) <= limit
    assert sorted(item.path for part in parts for item in part) == sorted(i.path for i in items)
    for part in parts:
        paths = {item.path for item in part}
        assert all(item.target in paths for item in part if isinstance(item, LinkEntry))
    shuffled = list(items)
    chance.shuffle(shuffled)
    assert parted(shuffled, limit) == parts


@given(items=BUILDS)
def test_only_large_files_have_their_own_part_up_to_a_limit(
    items: tuple[TreeEntry, ...],
) -> None:
    parts = parted(items)
    large = {i.sha256 for i in items if isinstance(i, FileEntry) and i.size >= LARGE}
    small = any(isinstance(i, FileEntry) and i.size < LARGE for i in items)
    alone = [{i.sha256 for i in part if isinstance(i, FileEntry)} for part in parts]
    assert len(parts) == min(ARCHIVES, len(large) + small)
    assert all(len(part) == 1 for part in alone[:-1])
    assert [part <= large for part in alone[:-1]] == [True] * (len(parts) - 1)


def test_copies_of_one_file_are_one_part() -> None:
    """Wheels cannot hold links: each library is there three times."""
    copies = [FileEntry(f"libx.so{end}", LARGE, "x", executable=False) for end in ("", ".0")]
    assert parted(copies) == (tuple(copies),)


# --- what cannot be packed ----------------------------------------------------------------------


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


REFUSED = {
    "dangling": lambda folder: (folder / "x").symlink_to("nowhere"),
    "outside": lambda folder: (folder / "x").symlink_to("../secret"),
    "absolute": lambda folder: (folder / "x").symlink_to("/etc/passwd"),
    "to_a_folder": lambda folder: (folder / "x").symlink_to("lib"),
    "upwards": lambda folder: (folder / "lib" / "x").symlink_to("../LICENSE"),
    "in_a_circle": lambda folder: (folder / "x").symlink_to("x"),
    "fifo": fifo,
    "twins": lambda folder: (folder / "license").write_bytes(b""),
    "device_name": lambda folder: (folder / "nul.txt").write_bytes(b""),
    "blank": lambda folder: (folder / "a name").write_bytes(b""),
    "umlaut": lambda folder: (folder / "ä").write_bytes(b""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tree_that_clients_would_refuse_is_refused_by_name(tmp_path: Path, name: str) -> None:
    tree = write(tmp_path / "build")
    REFUSED[name](tree)
    with pytest.raises(UsageError, match="no client would install it") as caught:
        contents(tree)
    assert caught.value.facts
    assert caught.value.hint
