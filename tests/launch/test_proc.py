"""The kernel's view of processes: texts as drivers print them, and this test's own processes."""

import contextlib
import mmap
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.gpu import proc
from tsuku_llm.launch.gpu.gpu_use import ProcessSample
from tsuku_llm.launch.gpu.proc import (
    computing_processes,
    drm_count,
    listeners_of,
    mapped_bytes,
    mapped_files,
    mapped_model,
    sample_processes,
)

GIB, KIB = 1 << 30, 1 << 10

# fdinfo as the kernel's documentation (drm-usage-stats) and drivers print it.

AMDGPU = """\
pos:\t0
drm-driver:\tamdgpu
drm-client-id:\t34
drm-pdev:\t0000:03:00.0
drm-memory-vram:\t5242880 KiB
drm-memory-gtt: \t20480 KiB
drm-memory-cpu: \t512 KiB
drm-engine-gfx:\t1000 ns
drm-engine-compute:\t250 ns
drm-engine-capacity-compute:\t8
"""
XE = """\
drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:00:02.0
drm-total-system:\t1024 MiB
drm-resident-system:\t512 MiB
drm-total-vram0:\t4096 MiB
drm-resident-vram0:\t2048 MiB
drm-cycles-rcs:\t28257900
drm-total-cycles-rcs:\t7655183225
drm-cycles-ccs:\t100
"""
I915 = "drm-driver:\ti915\ndrm-client-id:\t9\ndrm-total-system0:\t262144 KiB\n"


def count(device_memory: int, memory: int, busy: int | None) -> ProcessSample:
    return ProcessSample(device_memory=device_memory, memory=memory, busy=busy)


AMD = count(5 * GIB, 5 * GIB + 20480 * KIB, 1250)
INTEL = count(2 * GIB, 2 * GIB + (512 << 20), 28258000)


@pytest.mark.parametrize(
    ("texts", "counted"),
    [
        ([], ProcessSample()),
        (["pos:\t0\nflags:\t02\n"], ProcessSample()),
        ([AMDGPU], AMD),
        ([AMDGPU, AMDGPU], AMD),
        ([XE], INTEL),
        ([I915], count(256 << 20, 256 << 20, None)),
        (
            [AMDGPU.replace("34", "35"), XE],
            count(7 * GIB, 7 * GIB + 20480 * KIB + (512 << 20), 1250 + 28258000),
        ),
        (["drm-client-id:\t1\n"], ProcessSample()),
        (["drm-client-id:\t1\ndrm-memory-vram:\t77\n"], count(77, 77, None)),
    ],
)
def test_the_counts_of_the_kernels_drivers(texts: list[str], counted: ProcessSample) -> None:
    assert drm_count(texts) == counted


MAPS = """\
55d0000-55d1000 r-xp 00000000 08:01 12 /opt/my build/llama-server
7f00000-7f01000 r--p 00000000 08:01 13 /opt/my build/libggml-vulkan.so (deleted)
7f02000-7f03000 rw-p 00000000 00:00 0
7f04000-7f05000 r-xp 00000000 00:00 0  [vdso]
8000000-8400000 r--s 00000000 08:01 14 /models/big-00001-of-00002.gguf
9000000-9100000 r--s 00000000 08:01 15 /models/big-00002-of-00002.gguf
a000000-a100000 r--s 00000000 08:01 16 /models/other.gguf
"""


def test_the_names_of_mapped_files() -> None:
    assert mapped_files(MAPS) >= {"llama-server", "libggml-vulkan.so", "[vdso]"}


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("/models/big-00001-of-00002.gguf", 5 << 20),
        ("/models/other.gguf", 1 << 20),
        ("/models/none.gguf", 0),
    ],
)
def test_the_part_of_a_model_that_is_mapped(model: str, size: int) -> None:
    assert mapped_bytes(MAPS, model) == size


@given(st.text(), st.lists(st.text()))
def test_any_text_is_read(maps: str, texts: list[str]) -> None:
    mapped_files(maps)
    drm_count(texts)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_of_a_child_belongs_to_the_server(tmp_path: Path) -> None:
    """As in a router, and in a script that starts a server."""
    held = tmp_path / "held.gguf"
    held.write_bytes(bytes(8192))
    code = f"import mmap,sys; f = open({str(held)!r}); m = mmap.mmap(f.fileno(), 0, prot=1); "
    code += "print(1, flush=True); sys.stdin.read()"
    line = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", code]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        both = computing_processes(child.pid, frozenset({"none.so"}))
        assert both[0] == child.pid
        assert len(both) == 2
        pids = computing_processes(child.pid, frozenset({"held.gguf"}))
        assert pids == both[1:]
        # A parent that has it mapped too only hands out work: the shell and Python share libc.
        shared = sample_processes(both[:1]).libraries
        assert computing_processes(child.pid, shared or frozenset()) == both[1:]
        sample = sample_processes(pids, str(held))
        assert sample.model_mapped == 8192
        assert sample.libraries
        assert "held.gguf" in sample.libraries
        assert sample_processes((child.pid,), str(held)).model_mapped == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("mapped", "model"),
    [
        # A cache that names files by their digest, and parts of which one has no layer here.
        (["blobs/4f2a"], "blobs/4f2a"),
        (["m-00010-of-00012.gguf", "m-00002-of-00012.gguf"], "m-00001-of-00012.gguf"),
        (["m.gguf", "draft.gguf"], None),
        ([], None),
    ],
)
def test_the_model_that_a_server_has_fetched_is_found(
    mapped: list[str], model: str | None, tmp_path: Path
) -> None:
    (tmp_path / "blobs").mkdir()
    with contextlib.ExitStack() as opened:
        for name in [*mapped, "notes.txt"]:
            path = tmp_path / name
            path.write_bytes(b"GGUF" + bytes(8188) if name in mapped else bytes(8192))
            file = opened.enter_context(path.open("rb"))
            opened.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        found = mapped_model((os.getpid(),))
    assert found == (model and str(tmp_path / model))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_that_is_gone_has_no_facts() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    sample = sample_processes((ended.pid,))
    assert (sample.nodes, sample.libraries, sample.memory) == (None, None, None)
    assert computing_processes(os.getpid(), frozenset())[0] == os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("driver", "counts"), [("nvidia", False), ("amdgpu", True)])
def test_a_drm_node_of_nvidias_driver_does_not_count(
    driver: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No driver would count its memory in /proc, and that of the server would be unknown."""
    node = tmp_path / "renderD128"
    node.touch()
    device = tmp_path / "drm" / "renderD128" / "device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    monkeypatch.setattr(proc, "_NODE", re.compile(re.escape(str(node))))
    monkeypatch.setattr(proc, "_DRM_CLASS", str(tmp_path / "drm"))
    with node.open():
        nodes = sample_processes((os.getpid(),)).nodes
    assert nodes == ((str(node),) if counts else ())


LISTEN = """
import socket, sys
kept = [socket.create_server(("127.0.0.1", 0))]
if socket.has_dualstack_ipv6():
    kept.append(socket.create_server(("::1", kept[0].getsockname()[1]), family=socket.AF_INET6))
for name in sys.argv[1:]:
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(name)
    kept[-1].listen()
print(kept[0].getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")
@pytest.mark.parametrize("script", [False, True], ids=["itself", "below-a-script"])
def test_the_sockets_of_a_server_are_read_from_its_process(script: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "a b.sock")
    command = [sys.executable, "-c", LISTEN, path]
    if script:
        command = ["sh", "-c", '"$@"; :', "sh", *command]
    with (
        socket.create_server(("127.0.0.1", 0)) as foreign,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server,
    ):
        assert server.stdout
        assert server.stdin
        port, other = int(server.stdout.readline()), foreign.getsockname()[1]
        found = listeners_of(server.pid)
        server.stdin.close()
    assert found
    assert {("127.0.0.1", port), (path, 0)} <= {*found.own}
    assert {host for host, _ in found.own} <= {"127.0.0.1", "::1", path}
    # The other program's port is known, and is not the server's.
    assert other in found.ports


def test_a_process_without_sockets_listens_nowhere() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        found = listeners_of(server.pid)
        assert server.stdin
        server.stdin.close()
    assert found is not None
    assert found.own == ()
    # It has ended: nothing can tell any more.
    assert listeners_of(server.pid) is None
