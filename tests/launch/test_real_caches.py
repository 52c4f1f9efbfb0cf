"""Real drivers keep their code in the folders that they are given: PoCL and Mesa's lavapipe."""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tools import require_tool

from tsuku_llm.launch.plan.driver_caches import cache_variables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these drivers are Linux's")

COMPILES = """
import ctypes

cl = ctypes.CDLL("libOpenCL.so.1")
for name in ("clCreateContext", "clCreateProgramWithSource"):
    getattr(cl, name).restype = ctypes.c_void_p
platform, device, error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
cl.clGetPlatformIDs(1, ctypes.byref(platform), None)
assert cl.clGetDeviceIDs(platform, ctypes.c_uint64(0xFFFFFFFF), 1, ctypes.byref(device), None) == 0
context = cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(error))
source = ctypes.c_char_p(b"kernel void f(global int *x) { x[get_global_id(0)] += 1; }")
arguments = (ctypes.c_void_p(context), 1, ctypes.byref(source), None, ctypes.byref(error))
program = ctypes.c_void_p(cl.clCreateProgramWithSource(*arguments))
assert cl.clBuildProgram(program, 0, None, None, None, None) == 0
"""
"""A program that compiles a kernel, as ggml's OpenCL backend does."""


def run(backend: str, root: Path, *words: str, **more: str) -> None:
    """Run a program with the folders that a start would give, without a home."""
    # PoCL makes a home that is missing, if it can: root could make /nonexistent.
    own = {"PATH": os.environ["PATH"], "HOME": "/dev/null/home", **more}
    added = cache_variables(backend, own, root)
    for value in added.values():
        if value.startswith(str(root)):
            Path(value).mkdir(parents=True, exist_ok=True)
    subprocess.run(words, env={**own, **added}, capture_output=True, check=True)


def test_pocl_keeps_a_kernel_and_compiles_it_once(tmp_path: Path) -> None:
    if not Path("/etc/OpenCL/vendors/pocl.icd").exists() or not ctypes.util.find_library("OpenCL"):
        pytest.skip("PoCL is not installed")
    only = {"OCL_ICD_VENDORS": "/etc/OpenCL/vendors/pocl.icd"}
    run("opencl", tmp_path, sys.executable, "-c", COMPILES, **only)
    (kept,) = (tmp_path / "pocl").rglob("program.bc")
    before = kept.stat()
    run("opencl", tmp_path, sys.executable, "-c", COMPILES, **only)
    assert list((tmp_path / "pocl").rglob("program.bc")) == [kept]
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_mesa_opens_its_cache_in_the_folder(tmp_path: Path) -> None:
    icd = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
    if not icd.exists():
        pytest.skip("lavapipe is not installed")
    program = require_tool("vulkaninfo")
    run("vulkan", tmp_path, program, "--summary", VK_DRIVER_FILES=str(icd))
    assert [path for path in (tmp_path / "mesa").rglob("*") if path.is_file()]
    assert not list((tmp_path / "nvidia-gl").iterdir())
