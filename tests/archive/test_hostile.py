"""Rows A of the fault table: archives that must be refused, and leave nothing outside."""

import gzip
import io
import os
import stat
from pathlib import Path

import pytest
from support.archives import (
    BLOCK,
    FLAG_ENCRYPTED,
    Tar,
    Zip,
    artifact_for,
    deflated,
    gnu_long,
    pax,
    pax_record,
    tar,
    tar_gz,
    zipped,
)
from support.inflaters import inflater  # noqa: F401 - runs each test with both libraries

from tsuku_llm.archive.formats.member import MEMBERS, Budget
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import TsukuError, UnsafeArchive

GOOD = Tar(name="good", data=b"good")
DEEP = "/".join(["d"] * 1500)

NAMES = {
    "A01_absolute": "/etc/passwd",
    "A01_double_slash": "//server/share",
    "A01_slash_alone": "/",
    "A02_leading": "../evil",
    "A02_middle": "a/../../evil",
    "A02_end": "a/..",
    "A02_alone": "..",
    "A02_many": "../" * 20 + "tmp/evil",
    "A02_inside": "a/../b",
    "A03_backslash": "..\\evil",
    "A03_backslash_middle": "a\\..\\..\\evil",
    "A03_drive": "C:\\evil",
    "A03_drive_slash": "C:/evil",
    "A03_drive_relative": "C:evil",
    "A03_unc": "\\\\server\\share\\evil",
    "A03_device_path": "\\\\?\\C:\\evil",
    "A04_stream": "good:evil",
    "A04_stream_data": "good::$DATA",
    "A05_nul": "NUL",
    "A05_aux_txt": "aux.txt",
    "A05_con_in_folder": "a/con",
    "A05_com1": "COM1.so",
    "A05_com_superscript": "com¹",
    "A05_conin": "CONIN$",
    "A05_nul_spaces": "nul .txt",
    "A05_trailing_dot": "evil.",
    "A05_trailing_space": "evil ",
    "A05_trailing_dot_folder": "evil./x",
    "A05_wildcard": "ev?l*",
    "A05_pipe": "ev|l",
    "A05_quote": 'ev"l',
    "A05_angle": "ev<l>",
    "A06_newline": "ev\nil",
    "A06_escape": "ev\x1b[31mil",
    "A06_tab": "ev\til",
    "A06_delete": "ev\x7fil",
    "A06_c1": "ev\x9bil",
    "A06_bidi": "ev\u202elim.so",
    "A06_zero_width": "ev\u200bil",
    "A06_line_separator": "ev\u2028il",
    "A06_no_break_space": "ev\u00a0il",
    "A06_bom": "\ufeffevil",
    "A07_dot": ".",
    "A07_dot_inside": "a/./b",
    "A07_empty_part": "a//b",
    "A08_300_bytes": "x" * 300,
    "A08_201_bytes": "x" * 201,
    "A08_1500_deep": DEEP,
    "A08_33_deep": "/".join(["d"] * 33),
    "A08_utf8_long": "ä" * 140,
}


def tar_named(name: str) -> bytes:
    if len(name.encode()) > 100:
        return tar_gz([GOOD, gnu_long(name), Tar(name="x", data=b"evil")])
    return tar_gz([GOOD, Tar(name=name, data=b"evil")])


def pax_named(name: str) -> bytes:
    return tar_gz([GOOD, pax({"path": name}), Tar(name="x", data=b"evil")])


def zip_named(name: str) -> bytes:
    return zipped([Zip(name="good", data=b"good"), Zip(name=name, data=b"evil")])


BY_NAME = {
    f"{case}-{kind}": (make(name), "zip" if kind == "zip" else "tar.gz")
    for case, name in NAMES.items()
    for kind, make in {"tar": tar_named, "pax": pax_named, "zip": zip_named}.items()
    if (case, kind) != ("A01_slash_alone", "zip")  # there it is a folder, refused as one
}


def link(name: str, target: str) -> Tar:
    return Tar(name=name, kind=b"2", target=target)


def escape_by_long_links() -> list[Tar]:
    """CVE-2025-4517: a chain of long folder names and links that outgrows PATH_MAX."""
    members: list[Tar | bytes] = []
    path = ""
    long = "d" * 55
    for letter in "abcdefghijklmnop":
        members += [Tar(name=f"{path}{long}/", kind=b"5"), link(f"{path}{letter}", long)]
        path = f"{path}{letter}/"
    members += [
        pax({"linkpath": "../" * 16, "path": f"{path}{'l' * 50}"}),
        Tar(name="l", kind=b"2"),
        Tar(name="escape", kind=b"2", target="a/b/../../../../etc"),
        Tar(name="escape/evil", data=b"evil"),
    ]
    return members


HOSTILE_TAR = {
    "A09_link_out_relative": [link("l", "../outside"), Tar(name="l", data=b"evil")],
    "A09_link_out_absolute": [link("l", "/tmp")],  # noqa: S108
    "A09_write_through_link": [
        Tar(name="d/", kind=b"5"), link("l", "d"), Tar(name="l/evil", data=b"evil"),
    ],
    "A09_write_through_parent": [link("l", ".."), Tar(name="l/evil", data=b"evil")],
    "A09_link_to_dot": [link("l", ".")],
    "A09_link_empty": [link("l", "")],
    "A09_link_backslash": [GOOD, link("l", "..\\good")],
    "A09_link_drive": [GOOD, link("l", "C:good")],
    "A09_link_dangling": [link("l", "nothing")],
    "A09_link_to_folder": [Tar(name="d/", kind=b"5"), link("l", "d")],
    "A09_link_newline": [GOOD, link("l", "go\nod")],
    "A10_chain_out": [link("a", "b"), link("b", "../c")],
    "A10_circle": [link("a", "b"), link("b", "a")],
    "A10_to_itself": [link("a", "a")],
    "A10_through_folder_link": [
        Tar(name="d/", kind=b"5"), link("x", "d"), GOOD, link("y", "x/../../good"),
    ],
    "A10_long_chain": [
        *(link(f"l{n}", f"l{n + 1}") for n in range(40)), Tar(name="l40", data=b"x"),
    ],
    "A11_link_over_file": [GOOD, link("good", "/etc/passwd")],
    "A11_link_over_file_inside": [GOOD, Tar(name="b", data=b"b"), link("good", "b")],
    "A11_file_over_link": [GOOD, link("l", "good"), Tar(name="l", data=b"evil")],
    "A12_hardlink_out": [Tar(name="h", kind=b"1", target="../outside")],
    "A12_hardlink_absolute": [Tar(name="h", kind=b"1", target="/etc/passwd")],
    "A12_hardlink_via_link": [link("l", ".."), Tar(name="h", kind=b"1", target="l/outside")],
    "A12_hardlink_inside": [GOOD, Tar(name="h", kind=b"1", target="good")],
    "A13_fifo": [Tar(name="f", kind=b"6")],
    "A13_character_device": [Tar(name="c", kind=b"3")],
    "A13_block_device": [Tar(name="b", kind=b"4")],
    "A13_contiguous": [Tar(name="b", kind=b"7", data=b"x")],
    "A13_unknown_type": [Tar(name="b", kind=b"Z")],
    "A13_folder_with_content": [Tar(name="d/", kind=b"5", data=b"x")],
    "A13_file_named_as_folder": [Tar(name="d/")],
    "A13_old_folder": [Tar(name="d/", kind=b"\0")],
    "A15_twice": [GOOD, GOOD],
    "A15_twice_with_dot": [GOOD, Tar(name="./good", data=b"good")],
    "A16_case": [GOOD, Tar(name="GOOD", data=b"evil")],
    "A16_case_of_folder": [Tar(name="d/a", data=b"1"), Tar(name="D/b", data=b"2")],
    "A16_sharp_s": [Tar(name="straße", data=b"1"), Tar(name="STRASSE", data=b"2")],
    "A17_nfc_nfd": [Tar(name="\u00e9", data=b"1"), Tar(name="e\u0301", data=b"2")],
    "A17_kelvin": [Tar(name="k", data=b"1"), Tar(name="\u212a", data=b"2")],
    "A17_full_width": [Tar(name="a", data=b"1"), Tar(name="\uff41", data=b"2")],
    "A18_file_then_folder": [GOOD, Tar(name="good/", kind=b"5")],
    "A18_file_then_inside": [GOOD, Tar(name="good/evil", data=b"evil")],
    "A18_folder_then_file": [Tar(name="d/", kind=b"5"), Tar(name="d", data=b"evil")],
    "A18_implied_folder_then_file": [Tar(name="d/x", data=b"x"), Tar(name="d", data=b"evil")],
    "A22_members": [Tar(name=f"f{n}") for n in range(MEMBERS + 1)],
    "A22_pax_headers": [pax({"comment": "x"}, b"g") for _ in range(MEMBERS + 1)],
    "A23_sparse_gnu": [Tar(name="s", kind=b"S")],
    "A23_sparse_pax": [pax({"GNU.sparse.major": "1"}), Tar(name="s", data=b"x")],
    "A23_charset": [pax({"hdrcharset": "BINARY"}), Tar(name="s", data=b"x")],
    "A23_pax_path_twice": [
        pax(pax_record("path", "a") + pax_record("path", "../b")), Tar(name="s", data=b"x"),
    ],
    "A23_pax_and_gnu": [pax({"path": "a"}), gnu_long("b"), Tar(name="s", data=b"x")],
    "A23_pax_zero_byte": [pax({"path": "a\0/../../b"}), Tar(name="s", data=b"x")],
    "A23_pax_not_utf8": [pax({"path": b"\xff\xfe"}), Tar(name="s", data=b"x")],
    "A23_pax_negative_size": [pax({"size": "-1"}), Tar(name="s", data=b"x")],
    "A23_pax_float_size": [pax({"size": "1.5"}), Tar(name="s", data=b"x")],
    "A23_pax_huge_size": [pax({"size": "9" * 30}), Tar(name="s", data=b"x")],
    "A23_pax_arabic_size": [pax({"size": "\u0661"}), Tar(name="s", data=b"x")],
    "A23_pax_no_length": [pax(b"path=evil\n"), Tar(name="s", data=b"x")],
    "A23_pax_length_zero": [pax(b"0 path=evil\n"), Tar(name="s", data=b"x")],
    "A23_pax_length_long": [pax(b"99 path=evil\n"), Tar(name="s", data=b"x")],
    "A23_pax_no_newline": [pax(b"10 path=evi"), Tar(name="s", data=b"x")],
    "A23_pax_link": [pax({"linkpath": "/etc/passwd"}), link("l", "good")],
    "A23_pax_for_nothing": [GOOD, pax({"path": "x"})],
    "A23_empty_pax_for_nothing": [GOOD, pax(b"")],
    "A23_pax_too_long": [pax({"comment": "x" * (1 << 21)}), GOOD],
    "A23_global_path": [pax({"path": "../evil"}, b"g"), Tar(name="s", data=b"x")],
    "A23_global_size": [pax({"size": "0"}, b"g"), Tar(name="s", data=b"x")],
    "A23_negative_size": [Tar(name="s", raw_size=b"\xff" * 12)],
    "A23_huge_size": [Tar(name="s", raw_size=b"\x80" + b"\x7f" * 11)],
    "A23_volume": [Tar(name="v", kind=b"V")],
    "A23_multivolume": [Tar(name="v", kind=b"M")],
    "A23_name_not_utf8": [Tar(name=b"\xff\xfe", data=b"x")],
    "A25_CVE-2025-4517": escape_by_long_links(),
    "A25_CVE-2025-4330": [
        Tar(name="d/", kind=b"5"), link("d/l", "../.."), Tar(name="d/l/evil", data=b"evil"),
    ],
    "A25_CVE-2025-4138": [
        Tar(name="d/e/", kind=b"5"), link("x", "d/e/../../../outside"),
    ],
    "A25_CVE-2024-12718_mode_of_outside": [
        Tar(name="d/", kind=b"5"), Tar(name="d/../..", kind=b"5", mode=0o777),
    ],
    "A25_CVE-2007-4559": [Tar(name="../../../../../../etc/evil", data=b"evil")],
}  # fmt: skip

BROKEN_TAR = {
    "A23_not_gzip": b"this is no archive",
    "A23_empty": b"",
    "A23_not_tar": gzip.compress(b"x" * 2048),
    "A23_malformed_size": tar_gz([Tar(name="s", raw_size=b"12x45670123\0")]),
    "A23_bad_checksum": tar_gz([Tar(name="s", raw_checksum=b"000001\0 ")]),
    "A23_old_format": tar_gz([Tar(name="s", magic=b"")]),
    "A23_size_beyond_end": tar_gz([Tar(name="s", data=b"x", size=1 << 20)]),
    "A23_truncated_header": tar_gz([GOOD, Tar(name="s").header()[:300]], end=b""),
    "A23_truncated_data": tar_gz([Tar(name="s", data=b"x" * 600).encoded()[:900]], end=b""),
    "A23_no_end": tar_gz([GOOD], end=b""),
    "A23_gzip_cut": tar_gz([Tar(name="s", data=os.urandom(9000))])[:-700],
    "A23_gzip_crc": tar_gz([GOOD])[:-8] + b"\0\0\0\0" + tar_gz([GOOD])[-4:],
    "A23_gzip_trailing": tar_gz([GOOD]) + b"junk",
}

DATA_AFTER_END = {
    "A23_data_after_end": tar_gz([GOOD], end=bytes(2 * BLOCK) + Tar(name="e", data=b"e").encoded()),
    "A23_one_end_block": tar_gz([GOOD], end=bytes(BLOCK) + Tar(name="e", data=b"e").encoded()),
}

A = Zip(name="a", data=b"a" * 100)
B = Zip(name="b", data=b"b" * 100)

HOSTILE_ZIP = {
    "A09_zip_link": zipped([Zip(name="l", data=b"/etc/passwd", mode=stat.S_IFLNK | 0o777)]),
    "A13_zip_fifo": zipped([Zip(name="f", mode=stat.S_IFIFO | 0o644)]),
    "A13_zip_device": zipped([Zip(name="f", mode=stat.S_IFCHR | 0o644)]),
    "A13_zip_folder_with_content": zipped([Zip(name="d/", data=b"x")]),
    "A15_zip_twice": zipped([A, A]),
    "A16_zip_case": zipped([A, Zip(name="A", data=b"x")]),
    "A18_zip_file_then_inside": zipped([A, Zip(name="a/b", data=b"x")]),
    "A24_other_local_name": zipped([Zip(name="a", local_name="../evil", data=b"x")]),
    "A24_other_local_name_length": zipped([Zip(name="a", local_name="evil", data=b"x")]),
    "A24_other_local_size": zipped([Zip(name="a", data=b"x", local={"size": 9})]),
    "A24_other_local_packed": zipped([Zip(name="a", data=b"x", local={"packed": 1})]),
    "A24_other_local_crc": zipped([Zip(name="a", data=b"x", local={"crc": 1})]),
    "A24_other_local_method": zipped([Zip(name="a", data=b"x", local={"method": 0})]),
    "A24_other_local_flags": zipped([Zip(name="a", data=b"x", local={"flags": 2})]),
    "A24_same_offset": zipped([A, Zip(name="b", data=b"b", central={"offset": 0})]),
    "A24_overlap": zipped([Zip(name="a", data=b"a" * 100, central={"packed": 900}, method=0), B]),
    "A24_quoted_overlap": zipped([A, Zip(name="b", data=b"x", central={"offset": 5})]),
    "A24_size_lie_small": zipped(
        [Zip(name="a", data=b"a" * 9000, local={"size": 10}, central={"size": 10})]
    ),
    "A24_stored_size_lie": zipped(
        [Zip(name="a", data=b"a" * 90, method=0, local={"size": 10}, central={"size": 10})]
    ),
    "A24_prefix": zipped([A], prefix=b"#!/bin/sh\n"),
    "A24_prefix_unaccounted": b"MZ" + zipped([A]),
    "A24_suffix": zipped([A], suffix=b"junk"),
    "A24_comment_lie": zipped([A], comment=b"x") + b"y",
    "A24_gap": zipped([Zip(name="a", data=b"a", gap=b"hidden"), B]),
    "A24_gap_before_directory": zipped([A, Zip(name="b", data=b"b", gap=b"hidden")]),
    "A24_data_behind_stream": zipped([Zip(name="a", data=b"a", packed=deflated(b"a") + b"evil")]),
    "A24_encrypted": zipped([Zip(name="a", data=b"a", flags=FLAG_ENCRYPTED)]),
    "A24_strong_encryption": zipped([Zip(name="a", data=b"a", flags=0x41)]),
    "A24_hidden_headers": zipped([Zip(name="a", data=b"a", flags=0x2000)]),
    "A24_method_unknown": zipped([Zip(name="a", data=b"a", method=99, packed=b"a")]),
    "A24_method_lzma": zipped([Zip(name="a", data=b"a", method=14, packed=b"a")]),
    "A24_several_disks": zipped([A], end={"disk": 1}),
    "A24_member_on_disk": zipped([Zip(name="a", data=b"a", central={"disk": 1})]),
    "A24_fewer_counted": zipped([A, B], end={"count": 1}),
    "A24_directory_moved": zipped([A], end={"start": 3}),
    "A24_zip64_missing": zipped([Zip(name="a", data=b"a", central={"size": 0xFFFFFFFF})]),
    "A24_zip64_twice": zipped(
        [Zip(name="a", data=b"a", zip64=True, extra=b"\1\0\x08\0" + bytes(8))]
    ),
    "A24_unicode_path_field": zipped([Zip(name="a", data=b"a", extra=b"\x75\x70\x05\0\1abcd")]),
    "A24_extra_too_long": zipped([Zip(name="a", data=b"a", extra=b"\x99\x99\xff\0x")]),
    "A24_extra_stub": zipped([Zip(name="a", data=b"a", extra=b"\x99")]),
    "A24_name_not_ascii": zipped([Zip(name=b"\x81", data=b"a", flags=0)]),
    "A24_name_not_utf8": zipped([Zip(name=b"\xff", data=b"a", flags=0x800)]),
    "A24_name_zero_byte": zipped([Zip(name="a\0.txt", data=b"a")]),
    "A24_name_empty": zipped([Zip(name="", data=b"a")]),
    "A22_zip_members": zipped([Zip(name=f"f{n}", method=0) for n in range(MEMBERS + 1)]),
}

BROKEN_ZIP = {
    "A24_bad_crc": zipped([Zip(name="a", data=b"a", local={"crc": 7}, central={"crc": 7})]),
    "A24_size_lie_large": zipped(
        [Zip(name="a", data=b"a", local={"size": 10}, central={"size": 10})]
    ),
    "A24_bad_deflate": zipped([Zip(name="a", data=b"a", packed=b"\xff" * 20)]),
    "A24_deflate_cut": zipped([Zip(name="a", data=b"abc" * 90, packed=deflated(b"abc" * 90)[:-4])]),
    "A24_no_end": zipped([A])[:-10],
    "A24_empty": b"",
    "A24_no_zip": b"this is no archive" * 10,
    "A24_more_counted": zipped([A], end={"count": 2}),
    "A24_tar_as_zip": tar_gz([GOOD]),
}

REFUSED = {
    **BY_NAME,
    **{case: (tar_gz(members), "tar.gz") for case, members in HOSTILE_TAR.items()},
    **{case: (data, "tar.gz") for case, data in DATA_AFTER_END.items()},
    **{case: (data, "zip") for case, data in HOSTILE_ZIP.items()},
}
DAMAGED = {
    **{case: (data, "tar.gz") for case, data in BROKEN_TAR.items()},
    **{case: (data, "zip") for case, data in BROKEN_ZIP.items()},
}


def outside(folder: Path) -> dict[str, object]:
    return {
        str(path): (path.read_bytes() if path.is_file() else "folder", path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if "into" not in path.relative_to(folder).parts
    }


def attempt(data: bytes, kind: str, tmp_path: Path) -> TsukuError | None:
    """Unpack into a folder with a neighbour; gives the error, having looked at the neighbour."""
    (tmp_path / "outside").write_bytes(b"untouched")
    before = outside(tmp_path)
    caught = None
    try:
        unpack(io.BytesIO(data), artifact_for(data, kind), tmp_path / "into")
    except TsukuError as error:
        caught = error
    assert outside(tmp_path) == before
    assert_nothing_leads_out(tmp_path / "into")
    return caught


def assert_nothing_leads_out(into: Path) -> None:
    for path in into.rglob("*"):
        assert path.resolve().is_relative_to(into.resolve())
        assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def test_there_are_at_least_a_hundred() -> None:
    assert len(REFUSED) + len(DAMAGED) >= 250


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_archive_is_refused(case: str, tmp_path: Path) -> None:
    error = attempt(*REFUSED[case], tmp_path)
    assert isinstance(error, UnsafeArchive)
    assert error.exit_code == 5
    assert error.message.isprintable()
    assert all(fact.isprintable() for fact in error.facts)


@pytest.mark.parametrize("case", DAMAGED)
def test_S10_a_malformed_archive_is_refused(case: str, tmp_path: Path) -> None:
    error = attempt(*DAMAGED[case], tmp_path)
    assert isinstance(error, UnsafeArchive)
    assert error.exit_code == 5
    assert "fetch it again" not in error.hint


def test_A09_an_existing_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "into/d").symlink_to(tmp_path / "outside")
    data = tar_gz([Tar(name="d/evil", data=b"evil")])
    with pytest.raises(TsukuError):
        unpack(io.BytesIO(data), artifact_for(data, "tar.gz"), tmp_path / "into")
    assert not list((tmp_path / "outside").iterdir())


def test_A11_nothing_is_written_through_an_existing_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    (tmp_path / "into").mkdir()
    (tmp_path / "into/f").symlink_to(tmp_path / "outside")
    data = tar_gz([Tar(name="f", data=b"evil")])
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(data), artifact_for(data, "tar.gz"), tmp_path / "into")
    assert (tmp_path / "outside").read_bytes() == b"untouched"


def gzip_bomb() -> bytes:
    """1 GiB of zeros in a file of one member, packed to about 1 MB."""
    head = Tar(name="bomb", size=1 << 30).header()
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(head)
    part = gzip.compress(bytes(1 << 24), compresslevel=9, mtime=0)
    return out.getvalue() + part * 64


@pytest.mark.parametrize("listed", [True, False])
def test_A21_gzip_bomb(tmp_path: Path, *, listed: bool) -> None:
    data = gzip_bomb()
    assert len(data) < 2 << 20
    files = () if listed else None
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(data), artifact_for(data, "tar.gz", files=files), tmp_path / "into")
    assert written(tmp_path) <= (0 if listed else 100 << 20)


def test_A21_zip_bomb(tmp_path: Path) -> None:
    packed = deflated(bytes(1 << 28))
    lie = {"size": 1 << 28, "packed": len(packed)}
    data = zipped([Zip(name="bomb", packed=packed, local=lie, central=lie)])
    artifact = artifact_for(data, "zip")
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(data), artifact, tmp_path / "into")
    assert written(tmp_path) <= Budget.of(artifact, None).size < 100 << 20


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_A21_a_tar_that_ends_in_200_mib_of_zeros_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(tar([GOOD]) + bytes(200 << 20), compresslevel=1)
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(data), artifact_for(data, "tar.gz"), tmp_path / "into")
