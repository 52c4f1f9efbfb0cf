"""Row S08: readers of foreign bytes take time and memory in proportion to them, up to a cap.

Nothing is timed. What is copied, or executed, is counted for one size and for four times as
much. Patterns run where nothing can be counted: there a process with a limit of processor
time reads what takes a fraction of a second, or else hours.
"""

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import schemas
from support.archives import Tar, Zip, artifact_for, pax, tar, tar_gz, zipped
from support.growth import Copied, CopiedFile, grows_linearly, steps

from tsuku_llm.archive.formats import gzips
from tsuku_llm.archive.formats.gzips import GzipReader
from tsuku_llm.archive.formats.member import MEMBERS, Budget
from tsuku_llm.archive.formats.tars import _pax, tar_members
from tsuku_llm.archive.formats.zips import read_directory
from tsuku_llm.archive.names import MOST_FOLDERS, Names
from tsuku_llm.archive.placing import Aside, place
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.ground.tree_entry import FileEntry
from tsuku_llm.launch.ask.log import LogReader
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.snapshot import ReplayHost, parse_recording
from tsuku_llm.probe import probe
from tsuku_llm.probe.worker import elf
from tsuku_llm.trust import decode_json

SYSTEM = {"os": "linux", "libc": "glibc 2.39", "bits": 64, "machine": "x86_64", "release": "6.12"}
CPU_SECONDS = 60
"""Processor time of a child; what it does takes less than one, or hours."""


def wide() -> Budget:
    return Budget(1 << 40, 1 << 20)


# --- archives ------------------------------------------------------------------------------


def zip_file(count: int, comment: int = 0, extra: bytes = b"") -> bytes:
    """A zip file whose entries in the directory have long comments."""
    data = zipped([Zip(name=f"f{n}", method=0, extra=extra) for n in range(count)])
    if not comment:
        return data
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    directory = b""
    for entry in data[start:end].split(b"PK\1\2")[1:]:
        whole = b"PK\1\2" + entry
        directory += whole[:32] + comment.to_bytes(2, "little") + whole[34:] + bytes(comment)
    tail = data[end:]
    tail = tail[:12] + len(directory).to_bytes(4, "little") + tail[16:]
    return data[:start] + directory + tail


def copied_by_directory(data: bytes) -> int:
    file = CopiedFile(data)
    read_directory(file, wide())  # type: ignore[arg-type]
    return file.total[0]


def test_S08_a_zip_directory_is_copied_once() -> None:
    assert grows_linearly(lambda count: copied_by_directory(zip_file(count, comment=900)), 50)
    whole = zip_file(200, comment=900)
    assert copied_by_directory(whole) < 3 * len(whole)


def test_S08_extra_fields_are_copied_once() -> None:
    field = b"\x99\x99\0\0"
    assert grows_linearly(lambda n: copied_by_directory(zip_file(4, extra=field * n)), 60)


@pytest.mark.parametrize("place", ["both", "local"])
def test_S08_an_extra_field_has_a_cap(place: str) -> None:
    data = zipped([Zip(name="f", extra=b"\x99\x99\0\0" * 257)])
    if place == "local":
        start = data.index(b"PK\1\2")
        entry = bytearray(data[start : data.index(b"PK\5\6")])
        entry[30:32] = b"\0\0"
        del entry[46 + 1 :]
        tail = bytearray(data[data.index(b"PK\5\6") :])
        tail[12:16] = len(entry).to_bytes(4, "little")
        data = data[:start] + bytes(entry) + bytes(tail)
    with pytest.raises(UnsafeArchive, match="extra field is too long"):
        read_directory(CopiedFile(data), wide())  # type: ignore[arg-type]


def pax_cost(count: int) -> int:
    total = [0]
    _pax(Copied(b"5 a=\n" * count, total))
    return total[0]


def test_S08_a_pax_header_is_copied_once() -> None:
    assert grows_linearly(pax_cost, 24)


@pytest.mark.parametrize(
    "header",
    [
        pax(b"5 a=\n" * 101),
        pax({"comment": "x" * (17 << 10)}),
        Tar(name="././@LongLink", data=b"n" * (17 << 10), kind=b"L"),
    ],
    ids=["records", "bytes", "long_name"],
)
def test_S08_a_header_extension_has_a_cap(tmp_path: Path, header: Tar) -> None:
    data = tar_gz([header, Tar(name="f")])
    with pytest.raises(UnsafeArchive, match=r"too large|too many records"):
        unpack(CopiedFile(data), artifact_for(data, "tar.gz"), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["zlib", "isal.isal_zlib"])
def test_S08_tiny_gzip_members_do_not_take_a_whole_block_each(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """What lies behind a member's end is copied: a block of 256 KiB for each of 20 bytes."""
    real = pytest.importorskip(library)
    copied = 0

    class Counting:
        def __init__(self, bits: int) -> None:
            self._real = real.decompressobj(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal copied
            found = self._real.decompress(data, most)
            copied += len(self._real.unused_data) + len(self._real.unconsumed_tail)
            return bytes(found)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    counting = SimpleNamespace(decompressobj=Counting, error=real.error)
    monkeypatch.setattr(gzips, "LIBRARY", counting)
    members = 3000
    data = gzip.compress(b"", mtime=0) * members + tar_gz([Tar(name="f", data=b"x")])
    found = [*tar_members(GzipReader(CopiedFile(data), wide()), wide())]  # type: ignore[arg-type]
    assert [member.name for member in found] == ["f"]
    assert copied <= members * (4 << 10) + len(data)


def test_S08_names_are_folded_once_for_each_member() -> None:
    def cost(count: int) -> int:
        names = Names()
        folder = tuple("d" * 5 for _ in range(31))
        return steps(lambda: [names.add((*folder, f"f{n}"), "file") for n in range(count)])

    assert grows_linearly(cost, 10)
    assert grows_linearly(lambda depth: steps(lambda: Names().add(("d",) * depth, "file")), 8)


def test_S08_a_link_s_target_has_a_cap() -> None:
    names = Names()
    with pytest.raises(UnsafeArchive, match="target is too long"):
        names.link(("l",), "./" * 200 + "f")


def test_S14_too_many_members_are_refused_before_one_is_written(tmp_path: Path) -> None:
    for number, data in enumerate(
        (
            tar_gz([Tar(name=f"f{n}") for n in range(MEMBERS + 1000)]),
            tar_gz([Tar(name=f"f{n}", data=b"x" * 100) for n in range(MEMBERS + 1)]),
            tar_gz([Tar(name=f"l{n}", kind=b"2", target="f") for n in range(MEMBERS + 1)]),
        )
    ):
        into = tmp_path / str(number)
        with pytest.raises(UnsafeArchive, match="more members than allowed"):
            unpack(CopiedFile(data), artifact_for(data, "tar.gz"), into)  # type: ignore[arg-type]
        assert not list(into.iterdir())


def test_S14_a_zip_that_announces_too_many_is_refused_unread(tmp_path: Path) -> None:
    data = zip_file(MEMBERS + 1)
    file = CopiedFile(data)
    with pytest.raises(UnsafeArchive, match="more members than allowed"):
        unpack(file, artifact_for(data, "zip"), tmp_path / "t")  # type: ignore[arg-type]
    assert file.total[0] < 70_000, "its end, with the longest comment, and nothing else"


@pytest.mark.parametrize("implied", [False, True])
def test_S14_folders_have_a_cap_of_their_own(tmp_path: Path, implied: bool) -> None:
    names = [f"d{n}/" for n in range(MOST_FOLDERS + 1)]
    members = [Tar(name=f"{name}f") if implied else Tar(name=name, kind=b"5") for name in names]
    data = tar_gz(members)
    with pytest.raises(UnsafeArchive, match="more folders"):
        unpack(CopiedFile(data), artifact_for(data, "tar.gz"), tmp_path / "t")  # type: ignore[arg-type]


def test_S08_many_servers_are_refused_in_proportion_to_the_files(tmp_path: Path) -> None:
    def cost(count: int) -> int:
        names = (f"{number}/{name}" for number in range(count) for name in ("llama-server", "ggml"))
        items = tuple(FileEntry(name, 1, "0" * 64, executable=True) for name in names)
        archive = Aside(artifact_for(b"", "tar.gz", "llama-b1"), tmp_path, items)

        def refused() -> None:
            with pytest.raises(UnsafeArchive, match="more than one"):
                place([archive], tmp_path / "tree", "llama-server", {})

        return steps(refused)

    assert grows_linearly(cost, 10)


def test_S08_a_tar_is_read_in_proportion_to_its_members() -> None:
    def cost(count: int) -> int:
        data = gzip.compress(tar([Tar(name=f"f{n}", data=b"x") for n in range(count)]))
        reader = GzipReader(CopiedFile(data), wide())  # type: ignore[arg-type]
        return steps(lambda: [*tar_members(reader, wide())])

    assert grows_linearly(cost, 20)


def test_S08_a_signed_list_is_compared_in_proportion_to_its_files(tmp_path: Path) -> None:
    def cost(count: int) -> int:
        files = [FileEntry(path=f"f{n}", size=0, sha256=EMPTY) for n in range(count)]
        data = tar_gz([Tar(name=file.path) for file in files])
        artifact = artifact_for(data, "tar.gz", files=tuple(files))
        into = tmp_path / str(count)
        return steps(lambda: unpack(CopiedFile(data), artifact, into))  # type: ignore[arg-type]

    assert grows_linearly(cost, 20)


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# --- what drivers, loaders and servers say --------------------------------------------------


def device(index: int) -> dict[str, Any]:
    return {
        "call": "device", "index": index, "code": 0, "name": f"card {index}", "memory": 1 << 30,
        "capability": [9, 0], "heaps": [[1 << 30, 1]], "type": 2, "driver_id": 4,
    }  # fmt: skip


def recording(count: int) -> bytes:
    """A machine on which each API lists many devices."""
    calls = [
        {"call": "open", "library": "lib"},
        *({"call": name, "code": 0} for name in ("cuInit", "cuDeviceGetCount", "hipInit")),
        *(
            {"call": name, "code": 0}
            for name in ("hipGetDeviceCount", "zeInit", "vkCreateInstance")
        ),
        {"call": "vkEnumeratePhysicalDevices", "code": 0, "count": count},
    ]
    lines = [*calls, *map(device, range(count))]
    apis = ("cuda", "nvml", "hip", "vulkan", "level_zero", "opencl", "pci")
    answers = {name: {"lines": lines, "end": "done"} for name in apis}
    document = {"format": 1, "system": SYSTEM}
    return json.dumps({**document, "answers": answers}).encode()


def test_S40_a_recording_is_read_in_proportion_to_its_devices() -> None:
    found: list[Hardware] = []

    def cost(count: int) -> int:
        data = recording(count)
        return steps(lambda: found.append(probe(ReplayHost(parse_recording(data), "recording"))))

    assert grows_linearly(cost, 20)
    assert max(len(api.gpus) for api in found[-1].apis) >= 20


def test_S08_a_server_s_log_is_read_in_proportion() -> None:
    line = b"load_tensors: CPU model buffer size = 1.00 MiB\n"
    loaded = b"load_backend: loaded CPU backend from x\n"

    def kept(count: int) -> int:
        reader = LogReader()
        reader.feed((line + loaded) * count)
        return len(reader.facts.buffers) + len(reader.facts.loaded)

    assert kept(50) == 100
    assert kept(5000) == 512, "each line would copy what is remembered"


def versions(count: int, name_size: int) -> bytes:
    """An ELF file whose definitions all have the same endless name."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    head[18:20] = (62).to_bytes(2, "little")
    section = elf.SHT_GNU_VERDEF.to_bytes(4, "little")
    definitions_at = 64 + 2 * 64
    names_at = definitions_at + 20 * count
    head[40:48] = (64).to_bytes(8, "little")
    head[58:60] = (64).to_bytes(2, "little")
    head[60:62] = (2).to_bytes(2, "little")

    def entry(kind: bytes, offset: int, size: int, link: int, info: int) -> bytes:
        return (
            bytes(4) + kind + bytes(16) + offset.to_bytes(8, "little") + size.to_bytes(8, "little")
            + link.to_bytes(4, "little") + info.to_bytes(4, "little") + bytes(16)
        )  # fmt: skip

    table = entry(section, definitions_at, 20 * count, 1, count)
    table += entry(bytes(4), names_at, name_size, 0, 0)
    one = bytes(12) + (0).to_bytes(4, "little") + (20).to_bytes(4, "little")
    return bytes(head) + table + one * count + b"N" * name_size


def test_S08_symbol_versions_have_caps() -> None:
    def cost(count: int) -> int:
        total = [0]
        elf.version_definitions(Copied(versions(count, 1000 * count), total))
        return total[0]

    assert grows_linearly(cost, 10)
    assert len(elf.version_definitions(versions(20_000, 300))) == elf.MOST_NAMES


def test_S08_signed_json_is_decoded_in_proportion() -> None:
    def cost(count: int) -> int:
        data = json.dumps({"a": [{"b": n, "c": [n]} for n in range(count)]}).encode()
        return steps(lambda: decode_json(data))

    assert grows_linearly(cost, 50)


# --- patterns -------------------------------------------------------------------------------

LONG = {
    "S40_a_loader_s_message": (
        "from tsuku_llm.probe.facts.answers import is_absence\n"
        "for text in ('x' * 4_000_000, 'x:' * 2_000_000, 'loading shared library ' * 100_000):\n"
        "    assert not is_absence('libcuda.so.1', text)\n"
    ),
    "S08_a_heading_in_blank_lines": (
        "from tsuku_llm.launch.plan.devices import parse_devices\n"
        "for text in ('\\n' * 65_536, '-' * 65_536, 'a ' * 32_768, 'Available devices:\\nx: a' + "
        "' ' * 65_000 + 'b'):\n"
        "    parse_devices(text)\n"
    ),
    "S08_a_server_s_last_words": (
        "from tsuku_llm.launch.failed.diagnosis import diagnose\n"
        "from tsuku_llm.launch.ask.child import LastWords\n"
        "for text in ('x' * 65_536, 'load failed to open ' * 3_200, 'ggerror' * 9_000,\n"
        "             'error ' * 160 + '\\n', 'error: a.so: ' * 76 + '\\n', 'failed x\\n'):\n"
        "    words = LastWords()\n"
        "    for _ in range(300_000 // len(text)):\n"
        "        words.feed(text.encode())\n"
        "    diagnose(1, words.text())\n"
    ),
    "S08_a_line_of_a_log": (
        "from tsuku_llm.launch.ask.log import LogReader\n"
        "reader = LogReader()\n"
        "for _ in range(2_000):\n"
        "    reader.feed(b'x' * 4_095 + b'\\n')\n"
    ),
    "S08_a_web_page_without_a_title": (
        "from tsuku_llm.fetch.http.http_get import check_no_page\n"
        "from tsuku_llm.ground.errors import BodyError\n"
        "try:\n"
        "    check_no_page(b'<html' + b'<title' * 170_000, 'https://h.test/')\n"
        "except BodyError:\n"
        "    pass\n"
    ),
    "S08_the_linker_s_cache": (
        "import pathlib, tempfile\n"
        "from tsuku_llm.probe.worker import search\n"
        "head = search.CACHE_MAGIC + (200_000).to_bytes(4, 'little')\n"
        "at = (search.HEADER + search.ENTRY * 200_000).to_bytes(4, 'little')\n"
        "entries = (bytes(4) + at + at + bytes(12)) * 200_000\n"
        "data = head.ljust(search.HEADER, b'x') + entries + b'x' * 9_000_000\n"
        "with tempfile.TemporaryDirectory() as root:\n"
        "    (pathlib.Path(root) / 'etc').mkdir()\n"
        "    (pathlib.Path(root) / 'etc/ld.so.cache').write_bytes(data)\n"
        "    assert not [*search._cached(root, 'libc.so.6')]\n"
    ),
    "S08_a_heading_of_the_config_file": (
        "from tsuku_llm.config.file import line_of\nline_of('[' + ' ' * 1_000_000, 'backend')\n"
    ),
}


@pytest.mark.parametrize("case", LONG)
def test_a_long_text_takes_memory_for_its_length_only(case: str) -> None:
    done = limited("-c", LONG[case])
    assert done.returncode == 0, done.stderr


def test_S40_a_recording_with_long_texts_is_read(tmp_path: Path) -> None:
    long = {"call": "open", "names": ["libcuda.so.1"], "errors": ["x" * 3_900_000]}
    document = {"format": 1, "system": SYSTEM}
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({**document, "answers": {"cuda": {"lines": [long]}}}))
    done = limited("-m", "tsuku_llm", "explain", "--hardware", str(file), "--json")
    assert done.returncode == 0, done.stderr
    schemas.read(done.stdout)


@pytest.mark.parametrize("digits", [21, 5000])
def test_S40_a_number_of_too_many_digits_is_ignored(digits: int) -> None:
    document = {
        "format": 1,
        "system": SYSTEM,
        "files": {
            "/proc/meminfo": f"MemTotal: {'9' * digits} kB\n",
            "/sys/fs/cgroup/memory.max": "9" * digits,
        },
    }
    data = json.dumps(document).encode()
    assert probe(ReplayHost(parse_recording(data), "recording")).memory is None


def limited(*words: str) -> subprocess.CompletedProcess[str]:
    """A child of this Python that may use so much processor time, and any time of the clock."""
    limits: Callable[[], None] = lambda: resource.setrlimit(  # noqa: E731
        resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)
    )
    return subprocess.run(
        [sys.executable, *words], preexec_fn=limits, capture_output=True, text=True, check=False
    )  # fmt: skip
