"""What must be accepted, and what is reported about it."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.archives import (
    Tar,
    Zip,
    artifact_for,
    file_entry,
    gnu_long,
    pax,
    tar,
    tar_gz,
    zipped,
)
from support.inflaters import inflater  # noqa: F401 - runs each test with both libraries

from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import DigestMismatch, NoSpace, StoreError, TsukuError, UnsafeArchive
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry

BODY = b"\x7fELF" + bytes(range(256)) * 9


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def unpack_bytes(data: bytes, kind: str, into: Path, root: str = "", **rest: object) -> tuple:
    return unpack(io.BytesIO(data), artifact_for(data, kind, root, **rest), into)


def upstream_like() -> list[Tar]:
    """The layout of upstream's archives: a top folder, everything flat, library chains."""
    return [
        Tar(name="llama-b1/", kind=b"5", mode=0o755),
        Tar(name="llama-b1/llama-server", data=BODY, mode=0o755),
        Tar(name="llama-b1/libllama.so", kind=b"2", target="libllama.so.0"),
        Tar(name="llama-b1/libllama.so.0", kind=b"2", target="libllama.so.0.1"),
        Tar(name="llama-b1/libllama.so.0.1", data=BODY[::-1], mode=0o644),
        Tar(name="llama-b1/LICENSE", data=b"MIT"),
    ]


def test_upstreams_layout_is_unpacked_and_reported(tmp_path: Path) -> None:
    done = unpack_bytes(tar_gz(upstream_like()), "tar.gz", tmp_path / "t", "llama-b1")
    assert done == (
        FileEntry("LICENSE", 3, sha(b"MIT"), executable=False),
        LinkEntry("libllama.so", "libllama.so.0"),
        LinkEntry("libllama.so.0", "libllama.so.0.1"),
        FileEntry("libllama.so.0.1", len(BODY), sha(BODY[::-1]), executable=False),
        FileEntry("llama-server", len(BODY), sha(BODY), executable=True),
    )
    assert (tmp_path / "t/libllama.so").read_bytes() == BODY[::-1]
    assert (tmp_path / "t/libllama.so").readlink() == Path("libllama.so.0")


def test_a_flat_zip_with_folders_is_unpacked(tmp_path: Path) -> None:
    data = zipped(
        [
            Zip(name="llama-server.exe", data=BODY),
            Zip(name="data/", mode=stat.S_IFDIR | 0o755, method=0),
            Zip(name="data/vocab.txt", data=b"a", method=0),
        ]
    )
    done = unpack_bytes(data, "zip", tmp_path / "t")
    assert [item.path for item in done] == ["data/vocab.txt", "llama-server.exe"]
    assert (tmp_path / "t/data/vocab.txt").read_bytes() == b"a"


def test_only_the_root_folder_of_a_wheel_is_unpacked(tmp_path: Path) -> None:
    data = zipped(
        [
            Zip(name="pkg/bin/llama-server", data=BODY, mode=stat.S_IFREG | 0o755),
            Zip(name="pkg/__init__.py", data=b""),
            Zip(name="pkg-1.dist-info/RECORD", data=b"x"),
        ]
    )
    done = unpack_bytes(data, "wheel", tmp_path / "t", "pkg/bin")
    assert done == (FileEntry("llama-server", len(BODY), sha(BODY), executable=True),)
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["llama-server"]


def maker_wheel(more: int = 0) -> bytes:
    """As Intel's intel-sycl-rt: the libraries that a build needs are a few of many files."""
    folder = "maker-1.data/data/lib"
    return zipped(
        [
            Zip(name=f"{folder}/", mode=stat.S_IFDIR | 0o755, method=0),
            Zip(name=f"{folder}/libmaker.so.9", data=BODY),
            Zip(name=f"{folder}/libmaker-jit.so", data=bytes(1 << 20)),
            Zip(name=f"{folder}/cmake/", mode=stat.S_IFDIR | 0o755, method=0),
            Zip(name=f"{folder}/cmake/maker.cmake", data=b"cmake"),
            *(Zip(name=f"{folder}/more-{number}.py", data=b"x") for number in range(more)),
            Zip(name="maker-1.dist-info/RECORD", data=b"x"),
        ]
    )


def test_of_a_wheel_only_the_listed_files_are_unpacked(tmp_path: Path) -> None:
    wanted = FileEntry("libmaker.so.9", len(BODY), sha(BODY), executable=False)
    done = unpack_bytes(
        maker_wheel(more=300), "wheel", tmp_path / "t", "maker-1.data/data/lib", files=(wanted,)
    )
    assert done == (wanted,)
    assert [path.name for path in (tmp_path / "t").rglob("*")] == ["libmaker.so.9"]


@pytest.mark.parametrize(
    ("listed", "refusal"),
    [
        (FileEntry("libmaker.so.8", 1, sha(b"x")), UnsafeArchive),
        (FileEntry("cmake", 1, sha(b"x")), UnsafeArchive),
        (FileEntry("libmaker.so.9", len(BODY) + 1, sha(BODY)), DigestMismatch),
        (FileEntry("libmaker.so.9", len(BODY), sha(b"other")), DigestMismatch),
    ],
)
def test_what_is_listed_of_a_wheel_must_be_there_as_it_is_listed(
    tmp_path: Path, listed: FileEntry, refusal: type[TsukuError]
) -> None:
    with pytest.raises(refusal):
        unpack_bytes(
            maker_wheel(), "wheel", tmp_path / "t", "maker-1.data/data/lib", files=(listed,)
        )


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_of_another_archive_the_list_names_everything(tmp_path: Path, kind: str) -> None:
    wanted = (FileEntry("a", 1, sha(b"x")),)
    data = {
        "zip": zipped([Zip(name="a", data=b"x"), Zip(name="b", data=b"y")]),
        "tar.gz": tar_gz([Tar(name="a", data=b"x"), Tar(name="b", data=b"y")]),
    }[kind]
    with pytest.raises(UnsafeArchive, match="not in the signed list"):
        unpack_bytes(data, kind, tmp_path / "t", files=wanted)


def test_a_companion_is_unpacked_into_the_same_tree(tmp_path: Path) -> None:
    unpack_bytes(tar_gz(upstream_like()), "tar.gz", tmp_path / "t", "llama-b1")
    companion = [
        Tar(name="cudart-llama/libcudart.so.13", data=b"cuda"),
        Tar(name="cudart-llama/LICENSE", data=b"MIT"),
    ]
    done = unpack_bytes(tar_gz(companion), "tar.gz", tmp_path / "t", "cudart-llama")
    assert [item.path for item in done] == ["LICENSE", "libcudart.so.13"]
    assert (tmp_path / "t/libcudart.so.13").read_bytes() == b"cuda"
    assert (tmp_path / "t/llama-server").read_bytes() == BODY


@pytest.mark.parametrize(
    "second",
    [
        Tar(name="top/LICENSE", data=b"other"),
        Tar(name="top/libllama.so", data=b"a file where the first has a link"),
        Tar(name="top/LICENSE", kind=b"2", target="x"),
    ],
    ids=["A15_other_bytes", "A11_file_over_link", "A15_link_over_file"],
)
def test_a_companion_cannot_replace_files(tmp_path: Path, second: Tar) -> None:
    unpack_bytes(tar_gz(upstream_like()), "tar.gz", tmp_path / "t", "llama-b1")
    before = tree(tmp_path)
    with pytest.raises(UnsafeArchive):
        unpack_bytes(
            tar_gz([second, Tar(name="top/x", data=b"x")]), "tar.gz", tmp_path / "t", "top"
        )
    after = tree(tmp_path)
    assert {path: after[path] for path in before} == before


def tree(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


LONG = "llama-b1/" + "d" * 90 + "/" + "f" * 100 + ".so"


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ([pax({"path": LONG}), Tar(name="short", data=b"1")], LONG),
        ([gnu_long(LONG), Tar(name="short", data=b"1")], LONG),
        ([Tar(name="f.so", prefix=b"llama-b1/d", data=b"1")], "llama-b1/d/f.so"),
        ([Tar(name="./llama-b1/f", data=b"1")], "llama-b1/f"),
        ([pax({"size": "1"}), Tar(name="llama-b1/f", data=b"1", size=0)], "llama-b1/f"),
        ([pax({"mtime": "1.5", "uid": "9"}), Tar(name="llama-b1/f", data=b"1")], "llama-b1/f"),
        ([pax({"comment": "x"}, b"g"), Tar(name="llama-b1/f", data=b"1")], "llama-b1/f"),
        ([Tar(name="llama-b1/f", data=b"1", magic=b"ustar  \0")], "llama-b1/f"),
        ([Tar(name="llama-b1/f", data=b"1", kind=b"\0")], "llama-b1/f"),
        (
            [Tar(name="llama-b1/f", data=b"1", raw_size=b"\x80" + (1).to_bytes(11, "big"))],
            "llama-b1/f",
        ),
        ([Tar(name="llama-b1/ä-ö.txt", data=b"1")], "llama-b1/ä-ö.txt"),
        ([Tar(name="llama-b1/lib++.so-1.2@3", data=b"1")], "llama-b1/lib++.so-1.2@3"),
    ],
    ids=[
        "pax_path", "gnu_long_name", "ustar_prefix", "dot_slash", "pax_size", "pax_times",
        "pax_global_comment", "gnu_magic", "old_file_type", "base_256", "umlauts", "signs",
    ],
)  # fmt: skip
def test_tar_forms_that_honest_tools_write(tmp_path: Path, members: list[Tar], path: str) -> None:
    done = unpack_bytes(tar_gz(members), "tar.gz", tmp_path / "t", "llama-b1")
    assert [f"llama-b1/{item.path}" for item in done] == [path]
    assert (tmp_path / "t" / path.removeprefix("llama-b1/")).read_bytes() == b"1"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_pythons_tarfile_writes(tmp_path: Path, form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=form) as archive:
        for name in ("top/a", "top/" + "b" * 60 + "/" + "c" * 90):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(BODY), 0o755
            archive.addfile(info, io.BytesIO(BODY))
    done = unpack_bytes(buffer.getvalue(), "tar.gz", tmp_path / "t", "top")
    assert {item.sha256 for item in done} == {sha(BODY)}
    assert len(done) == 2


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("seekable", [True, False], ids=["seekable", "streamed"])
def test_what_pythons_zipfile_writes(tmp_path: Path, method: int, *, seekable: bool) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return seekable

        def tell(self) -> int:
            if not seekable:
                raise OSError
            return super().tell()

    buffer = Pipe()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a.dll", BODY)
        with archive.open("ä.txt", "w", force_zip64=True) as file:
            file.write(b"zip64")
        archive.comment = b"made by a test"
    done = unpack_bytes(buffer.getvalue(), "zip", tmp_path / "t")
    assert [(item.path, item.sha256) for item in done] == [
        ("a.dll", sha(BODY)),
        ("ä.txt", sha(b"zip64")),
    ]


@pytest.mark.parametrize(
    "data",
    [
        zipped([Zip(name="a", data=BODY, zip64=True)], end64=True),
        zipped([Zip(name="a", data=BODY, descriptor=True)]),
        zipped([Zip(name="a", data=BODY)], comment=b"built by upstream"),
        zipped([Zip(name="a", data=BODY, extra=b"\x55\x54\x05\x00\x01abcd")]),
        zipped([Zip(name="a", data=BODY, system=0, mode=0)]),
    ],
    ids=["zip64", "data_descriptor", "comment", "extra_time", "from_windows"],
)
def test_zip_forms_that_honest_tools_write(tmp_path: Path, data: bytes) -> None:
    (done,) = unpack_bytes(data, "zip", tmp_path / "t")
    assert (done.path, done.sha256) == ("a", sha(BODY))


def test_S10_an_empty_zip_is_unpacked_to_nothing(tmp_path: Path) -> None:
    """The placement then reports the missing server."""
    assert unpack_bytes(zipped([]), "zip", tmp_path / "t") == ()


def test_gzip_of_several_members_and_padding(tmp_path: Path) -> None:
    plain = tar(upstream_like())
    data = gzip.compress(plain[:700]) + gzip.compress(plain[700:]) + bytes(512)
    assert len(unpack_bytes(data, "tar.gz", tmp_path / "t", "llama-b1")) == 5


def test_links_may_lead_to_files_of_other_folders(tmp_path: Path) -> None:
    members = [
        Tar(name="top/lib/a.so.1", data=b"1"),
        Tar(name="top/lib/a.so", kind=b"2", target="./a.so.1"),
        Tar(name="top/bin/a.so", kind=b"2", target="../lib/a.so"),
    ]
    unpack_bytes(tar_gz(members), "tar.gz", tmp_path / "t", "top")
    assert (tmp_path / "t/bin/a.so").read_bytes() == b"1"


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o6755, 0o1777, 0o666, 0o111, 0o000, 0o4644])
def test_A14_modes_do_not_depend_on_umask_or_archive(tmp_path: Path, umask: int, mode: int) -> None:
    data = tar_gz([Tar(name="d/", kind=b"5", mode=0o777), Tar(name="d/f", data=b"x", mode=mode)])
    old = os.umask(umask)
    try:
        (done,) = unpack_bytes(data, "tar.gz", tmp_path / "t")
    finally:
        os.umask(old)
    expected = 0o755 if mode & 0o111 else 0o644
    assert stat.S_IMODE((tmp_path / "t/d/f").stat().st_mode) == expected
    assert stat.S_IMODE((tmp_path / "t/d").stat().st_mode) == 0o755
    assert done.executable == (expected == 0o755)


def listed(members: list[Tar] | None = None, **change: object) -> tuple[bytes, dict[str, object]]:
    data = tar_gz(members or upstream_like())
    listing: dict[str, object] = {
        "files": (
            file_entry("LICENSE", b"MIT"),
            file_entry("libllama.so.0.1", BODY[::-1], executable=True),
            file_entry("llama-server", BODY, executable=True),
        ),
        "links": (
            LinkEntry(path="libllama.so", target="libllama.so.0"),
            LinkEntry(path="libllama.so.0", target="libllama.so.0.1"),
        ),
    }
    return data, listing | change


def test_a_listed_archive_takes_modes_from_the_list(tmp_path: Path) -> None:
    data, listing = listed()
    done = unpack_bytes(data, "tar.gz", tmp_path / "t", "llama-b1", **listing)
    assert [item.path for item in done if getattr(item, "executable", False)] == [
        "libllama.so.0.1",
        "llama-server",
    ]


def changed(index: int, **change: object) -> list[Tar]:
    members = upstream_like()
    old = {key: getattr(members[index], key) for key in ("name", "data", "kind", "target", "mode")}
    members[index] = Tar(**(old | change))
    return members


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([*upstream_like(), Tar(name="llama-b1/libggml-evil.so", data=b"x")], UnsafeArchive),
        ([*upstream_like(), Tar(name="llama-b1/extra/", kind=b"5")], UnsafeArchive),
        (
            [*upstream_like(), Tar(name="llama-b1/z.so", kind=b"2", target="LICENSE")],
            UnsafeArchive,
        ),
        (upstream_like()[:-1], UnsafeArchive),
        (upstream_like()[:3] + upstream_like()[4:], UnsafeArchive),
        (changed(1, data=BODY[:-1]), DigestMismatch),
        (changed(1, data=BODY + b"x"), DigestMismatch),
        (changed(1, data=BODY[:-1] + bytes([BODY[-1] ^ 1])), DigestMismatch),
        (changed(2, target="LICENSE"), UnsafeArchive),
        (changed(5, kind=b"2", data=b"", target="llama-server"), UnsafeArchive),
    ],
    ids=[
        "A19_extra_library", "A19_extra_folder", "A19_extra_link", "A20_missing_file",
        "A20_missing_link", "A20_short", "A20_long", "A20_one_bit", "A20_other_target",
        "A20_link_for_file",
    ],
)  # fmt: skip
def test_an_archive_unlike_its_signed_list_is_refused(
    tmp_path: Path, members: list[Tar], error: type[TsukuError]
) -> None:
    data, listing = listed(members)
    with pytest.raises(error) as caught:
        unpack_bytes(data, "tar.gz", tmp_path / "t", "llama-b1", **listing)
    assert caught.value.exit_code == 5


def test_a_budget_given_by_the_caller_is_kept(tmp_path: Path) -> None:
    data = tar_gz(upstream_like())
    artifact = artifact_for(data, "tar.gz", "llama-b1")
    with pytest.raises(UnsafeArchive, match="more members"):
        unpack(io.BytesIO(data), artifact, tmp_path / "t", Budget(1 << 20, 3))
    with pytest.raises(UnsafeArchive, match="more bytes than allowed"):
        unpack(io.BytesIO(data), artifact, tmp_path / "u", Budget(1024, 100))


def test_an_archive_is_read_from_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(tar_gz(upstream_like()))
    artifact = artifact_for(b"", "tar.gz", "llama-b1")
    assert len(unpack(tmp_path / "a.tar.gz", artifact, tmp_path / "t")) == 5


def test_a_stream_need_not_be_seekable_for_tar(tmp_path: Path) -> None:
    data = tar_gz(upstream_like())

    class Stream(io.RawIOBase):
        """Gives odd amounts, as verified pieces from a network would come."""

        left = io.BytesIO(data)

        def read(self, size: int = -1) -> bytes:
            return self.left.read(min(size, 7))

    done = unpack(Stream(), artifact_for(data, "tar.gz", "llama-b1"), tmp_path / "t")
    assert len(done) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_A26_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=64k none {small} 2>/dev/null"):  # noqa: S605
        pytest.skip("cannot mount a tmpfs")
    try:
        data = tar_gz([Tar(name="big", data=os.urandom(1 << 18))])
        with pytest.raises(NoSpace) as caught:
            unpack_bytes(data, "tar.gz", small / "t")
        assert caught.value.exit_code == 6
    finally:
        os.system(f"umount {small}")  # noqa: S605


@pytest.mark.skipif(os.name != "posix", reason="POSIX")
def test_A26_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(StoreError) as caught:
        unpack_bytes(tar_gz(upstream_like()), "tar.gz", Path(os.devnull) / "t", "llama-b1")
    assert caught.value.exit_code == 6
