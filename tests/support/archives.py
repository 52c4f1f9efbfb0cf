"""Archives made byte by byte: benign ones, and such as no honest tool would write."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.tree_entry import FileEntry

BLOCK = 512


def artifact_for(data: bytes, kind: Any, root: str = "", **rest: Any) -> Artifact:
    """A manifest entry for an archive."""
    return Artifact(
        url=f"https://releases.test/build.{kind}",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        format=kind,
        root=root,
        **rest,
    )


def file_entry(path: str, data: bytes, *, executable: bool = False) -> FileEntry:
    digest = hashlib.sha256(data).hexdigest()
    return FileEntry(path=path, size=len(data), sha256=digest, executable=executable)


@dataclass(frozen=True, kw_only=True)
class Tar:
    """One tar member; ``raw`` fields replace what would be computed."""

    name: str | bytes
    data: bytes = b""
    kind: bytes = b"0"
    target: str | bytes = ""
    mode: int = 0o644
    size: int | None = None
    raw_size: bytes | None = None
    raw_checksum: bytes | None = None
    magic: bytes = b"ustar\x0000"
    prefix: bytes = b""

    def encoded(self) -> bytes:
        return self.header() + self.data + bytes(-len(self.data) % BLOCK)

    def header(self) -> bytes:
        size = len(self.data) if self.size is None else self.size
        head = bytearray(BLOCK)
        put(head, 0, 100, as_bytes(self.name))
        put(head, 100, 8, b"%07o\0" % self.mode)
        put(head, 108, 8, b"0000000\0")
        put(head, 116, 8, b"0000000\0")
        put(head, 124, 12, b"%011o\0" % size if self.raw_size is None else self.raw_size)
        put(head, 136, 12, b"%011o\0" % 0)
        put(head, 148, 8, b" " * 8)
        put(head, 156, 1, self.kind)
        put(head, 157, 100, as_bytes(self.target))
        put(head, 257, 8, self.magic)
        put(head, 345, 155, self.prefix)
        put(head, 148, 8, self.raw_checksum or b"%06o\0 " % sum(head))
        return bytes(head)


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def put(block: bytearray, at: int, width: int, value: bytes) -> None:
    block[at : at + width] = value[:width].ljust(width, b"\0")


def pax_record(key: str | bytes, value: str | bytes) -> bytes:
    rest = b" " + as_bytes(key) + b"=" + as_bytes(value) + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def pax(records: dict[str, str | bytes] | bytes, kind: bytes = b"x") -> Tar:
    """An extended header for the next member (or, as kind ``g``, for all)."""
    data = (
        records
        if isinstance(records, bytes)
        else b"".join(pax_record(key, value) for key, value in records.items())
    )
    return Tar(name="PaxHeaders/0", data=data, kind=kind)


def gnu_long(text: str | bytes, kind: bytes = b"L") -> Tar:
    """GNU's long name (``L``) or long link (``K``) for the next member."""
    return Tar(name="././@LongLink", data=as_bytes(text) + b"\0", kind=kind)


def tar(members: Iterable[Tar | bytes], end: bytes = bytes(2 * BLOCK)) -> bytes:
    return b"".join(m if isinstance(m, bytes) else m.encoded() for m in members) + end


def tar_gz(members: Iterable[Tar | bytes], end: bytes = bytes(2 * BLOCK)) -> bytes:
    return gzip.compress(tar(members, end), compresslevel=1, mtime=0)


@dataclass(frozen=True, kw_only=True)
class Zip:
    """One zip member; ``local_*`` and ``central_*`` let the two headers disagree."""

    name: str | bytes
    data: bytes = b""
    method: int = zlib.DEFLATED
    mode: int = stat.S_IFREG | 0o644
    system: int = 3
    flags: int | None = None
    descriptor: bool = False
    zip64: bool = False
    local_name: str | bytes | None = None
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)
    packed: bytes | None = None
    gap: bytes = b""
    extra: bytes = b""


FLAG_ENCRYPTED, FLAG_DESCRIPTOR, FLAG_UTF8 = 1, 8, 0x800


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def zipped(
    members: Sequence[Zip],
    *,
    prefix: bytes = b"",
    suffix: bytes = b"",
    comment: bytes = b"",
    end: dict[str, int] | None = None,
    end64: bool = False,
) -> bytes:
    """A zip file of these members, in this order."""
    out = io.BytesIO()
    out.write(prefix)
    directory = b""
    for member in members:
        directory += _add(out, member)
    start = out.tell()
    out.write(directory)
    values = {"count": len(members), "size": len(directory), "start": start} | (end or {})
    out.write(_end(values, comment, at=out.tell(), wide=end64))
    return out.getvalue() + suffix


def _add(out: io.BytesIO, member: Zip) -> bytes:
    """Write a member; gives its entry in the directory."""
    offset = out.tell()
    packed = member.packed
    if packed is None:
        packed = deflated(member.data) if member.method == zlib.DEFLATED else member.data
    name = as_bytes(member.name)
    flags = member.flags
    if flags is None:
        flags = (0 if name.isascii() else FLAG_UTF8) | (FLAG_DESCRIPTOR * member.descriptor)
    true = {
        "flags": flags,
        "method": member.method,
        "crc": zlib.crc32(member.data),
        "packed": len(packed),
        "size": len(member.data),
        "offset": offset,
        "mode": member.mode,
    }
    out.write(_local(member, true))
    out.write(packed)
    if member.descriptor:
        out.write(b"PK\7\x08" + struct.pack("<3L", true["crc"], true["packed"], true["size"]))
    out.write(member.gap)
    return _central(member, true | member.central, name)


def _local(member: Zip, true: dict[str, int]) -> bytes:
    name = as_bytes(member.name if member.local_name is None else member.local_name)
    values = dict(true)
    if member.descriptor:
        values |= {"crc": 0, "packed": 0, "size": 0}
    values |= member.local
    extra = member.extra
    sizes = (values["packed"], values["size"])
    if member.zip64:
        extra = struct.pack("<2H2Q", 1, 16, values["size"], values["packed"]) + extra
        sizes = (0xFFFFFFFF, 0xFFFFFFFF)
    head = struct.pack(
        "<4s5H3L2H", b"PK\3\4", 45 if member.zip64 else 20, values["flags"], values["method"],
        0, 0x21, values["crc"], *sizes, len(name), len(extra),
    )  # fmt: skip
    return head + name + extra


def _central(member: Zip, values: dict[str, int], name: bytes) -> bytes:
    extra = member.extra
    sizes = (values["packed"], values["size"])
    offset = values["offset"]
    if member.zip64:
        fields = struct.pack("<3Q", values["size"], values["packed"], offset)
        extra = struct.pack("<2H", 1, len(fields)) + fields + extra
        sizes, offset = (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF
    head = struct.pack(
        "<4s6H3L5H2L", b"PK\1\2", member.system << 8 | 20, 20, values["flags"], values["method"],
        0, 0x21, values["crc"], *sizes, len(name), len(extra), 0, values.get("disk", 0), 0,
        values["mode"] << 16, offset,
    )  # fmt: skip
    return head + name + extra


def _end(values: dict[str, int], comment: bytes, *, at: int, wide: bool) -> bytes:
    count, size, start = values["count"], values["size"], values["start"]
    disk = values.get("disk", 0)
    tail = b""
    if wide:
        tail = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
        tail += struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
        count, size, start = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    return tail + struct.pack(
        "<4s4H2LH", b"PK\5\6", disk, disk, count, count, size, start, len(comment)
    ) + comment  # fmt: skip
