"""Folders that stand for a machine's root: the few files that a probe looks at."""

from __future__ import annotations

import json
import struct
from pathlib import Path

LOADER = "/lib64/ld-linux-x86-64.so.2"
ICD = "/usr/share/vulkan/icd.d/{}_icd.json"
NODES = "/sys/class/kfd/kfd/topology/nodes"


def write(root: Path, name: str, content: str | bytes = "") -> Path:
    """Write one file below the root, with the folders above it."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def with_floors(root: Path, glibc: str = "2.39", libstdcxx: str = "3.4.33") -> Path:
    """A system on x86-64 with these versions of the C and C++ libraries, OpenSSL and OpenMP."""
    banner = f"GNU C Library (made) stable release version {glibc}.\n".encode()
    write(root, LOADER)
    write(root, "/lib64/libc.so.6", library(f"GLIBC_{glibc}", extra=banner))
    write(root, "/usr/lib64/libstdc++.so.6", library("GLIBCXX_3.4.9", f"GLIBCXX_{libstdcxx}"))
    for name in ("libssl.so.3", "libcrypto.so.3", "libgomp.so.1"):
        write(root, f"/usr/lib64/{name}", library())
    return root


def with_rocm(root: Path) -> Path:
    """The libraries of ROCm that a build does not bring."""
    for name in ("libamdhip64.so.7", "libhipblas.so.3", "librocblas.so.5"):
        write(root, f"/usr/lib64/{name}", library())
    return root


def with_pci(root: Path, vendor: str = "0x10de", kind: str = "0x030000") -> Path:
    """A display controller of that vendor on the bus, bound to a kernel module."""
    slot = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in {"class": kind, "vendor": vendor, "device": "0x2335"}.items():
        write(root, f"{slot}/{name}", f"{text}\n")
    (root / slot.lstrip("/") / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    return root


def with_icd(root: Path, library: str, name: str = "nvidia", **more: str) -> Path:
    """The file with which a Vulkan driver makes itself known."""
    entry = {"library_path": library, "api_version": "1.4.312", **more}
    write(root, ICD.format(name), json.dumps({"file_format_version": "1.0.1", "ICD": entry}))
    return root


def with_nodes(root: Path, *targets: int) -> Path:
    """The compute nodes of amdkfd: the processor, and a GPU of each target."""
    for number, target in enumerate((0, *targets)):
        text = f"cpu_cores_count 0\nsimd_count 192\ngfx_target_version {target}\nlocation_id 768\n"
        write(root, f"{NODES}/{number}/properties", text)
    return root


def with_musl(root: Path) -> Path:
    """A system whose only dynamic linker is musl's, which tells its version."""
    script = "#!/bin/sh\nprintf 'musl libc (x86_64)\\nVersion 1.2.5\\n' >&2\nexit 1\n"
    write(root, "/lib/ld-musl-x86_64.so.1", script).chmod(0o755)
    return root


def library(*versions: str, machine: int = 62, extra: bytes = b"") -> bytes:
    """A tiny ELF file: header, names, version definitions, three section headers."""
    names = b"\0" + b"".join(version.encode() + b"\0" for version in versions)
    entries = b""
    at = 1
    for index, version in enumerate(versions):
        last = index == len(versions) - 1
        entries += struct.pack("<HHHHIII", 1, 0, index + 1, 1, 0, 20, 0 if last else 28)
        entries += struct.pack("<II", at, 0)
        at += len(version) + 1
    body = names + entries + extra
    table = 64 + len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        3,
        machine,
        1,
        0,
        0,
        table,
        0,
        64,
        0,
        0,
        64,
        3,
        0,
    )
    sections = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    sections += struct.pack(
        "<IIQQQQIIQQ", 0, 0x6FFFFFFD, 0, 0, 64 + len(names), len(entries), 1, len(versions), 4, 0
    )
    return header + body + sections
