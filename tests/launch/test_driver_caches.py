"""The variables that name the drivers' caches: what is given, and that the user always wins."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.plan.driver_caches import (
    LIMIT,
    TABLE,
    cache_variables,
    caches_of,
    switched_off,
    users_place,
)
from tsuku_llm.launch.plan.planning import Build, environment
from tsuku_llm.machine.backends import TABLE as BACKENDS

ROOT = Path("/cache/drivers")

# As the drivers' own documentation has them; ``source`` in the table says where.
DOCUMENTED = {
    "vulkan": {
        "__GL_SHADER_DISK_CACHE": "1",
        "__GL_SHADER_DISK_CACHE_PATH": "/cache/drivers/nvidia-gl",
        "__GL_SHADER_DISK_CACHE_SIZE": "1073741824",
        "MESA_SHADER_CACHE_DIR": "/cache/drivers/mesa",
        "MESA_SHADER_CACHE_MAX_SIZE": "1024M",
    },
    "cuda": {
        "CUDA_CACHE_PATH": "/cache/drivers/nvidia-compute",
        "CUDA_CACHE_MAXSIZE": "1073741824",
    },
    "rocm": {
        "AMD_COMGR_CACHE_DIR": "/cache/drivers/amd-comgr",
        "AMD_COMGR_CACHE_POLICY": "prune_interval=1h:cache_size_bytes=1024m",
    },
    "sycl": {
        "NEO_CACHE_PERSISTENT": "1",
        "NEO_CACHE_DIR": "/cache/drivers/intel-neo",
        "NEO_CACHE_MAX_SIZE": "1073741824",
        "SYCL_CACHE_PERSISTENT": "1",
        "SYCL_CACHE_DIR": "/cache/drivers/intel-sycl",
        "SYCL_CACHE_MAX_SIZE": "1024",
    },
    "cpu": {},
    "metal": {},
    "of-a-newer-version": {},
}

VARIABLES = sorted(
    {name for cache in TABLE for name in (*cache.places, *cache.given, *cache.switches)}
)


@pytest.mark.parametrize("backend", DOCUMENTED)
def test_each_driver_of_a_backend_gets_a_folder_and_a_limit(backend: str) -> None:
    assert cache_variables(backend, {"HOME": "/root"}, ROOT) == DOCUMENTED[backend]


def test_opencl_may_use_the_drivers_of_every_vendor() -> None:
    given_variables = cache_variables("opencl", {}, ROOT)
    for name in ("POCL_CACHE_DIR", "GGML_OPENCL_KERNEL_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert given_variables[name].startswith("/cache/drivers/")
    assert {"NEO_CACHE_DIR", "MESA_SHADER_CACHE_DIR", "AMD_COMGR_CACHE_DIR"} <= {*given_variables}


def test_every_row_of_the_backends_names_caches_that_exist() -> None:
    """And every cache belongs to a backend, has a source, and has a limit if the driver trims."""
    used = {name for row in BACKENDS for name in row.caches}
    assert used == {cache.name for cache in TABLE}
    for cache in TABLE:
        assert cache.source
        text = " ".join(cache.given.values())
        bounded = any(each in text for each in (str(LIMIT), "1024M", "1024m", "1024"))
        assert bounded is cache.trims


@pytest.mark.parametrize(
    ("environ", "gone"),
    [
        ({"CUDA_CACHE_DISABLE": "1"}, "CUDA_CACHE_PATH"),
        ({"CUDA_CACHE_PATH": "/own"}, "CUDA_CACHE_MAXSIZE"),
        ({"__GL_SHADER_DISK_CACHE": "0"}, "__GL_SHADER_DISK_CACHE_PATH"),
        ({"__GL_SHADER_DISK_CACHE_PATH": ""}, "__GL_SHADER_DISK_CACHE_SIZE"),
        ({"MESA_SHADER_CACHE_DISABLE": "TRUE"}, "MESA_SHADER_CACHE_DIR"),
        ({"MESA_GLSL_CACHE_DIR": "/own"}, "MESA_SHADER_CACHE_DIR"),
        ({"SYCL_CACHE_PERSISTENT": "0"}, "SYCL_CACHE_DIR"),
        ({"NEO_CACHE_PERSISTENT": "0"}, "NEO_CACHE_DIR"),
    ],
    ids=str,
)
def test_what_the_user_has_said_about_a_driver_counts(environ: dict[str, str], gone: str) -> None:
    for backend in ("vulkan", "cuda", "sycl", "opencl"):
        assert gone not in cache_variables(backend, environ, ROOT)


@pytest.mark.parametrize(
    "environ",
    [
        {"CUDA_CACHE_DISABLE": "0"},
        {"CUDA_CACHE_MAXSIZE": "7"},
        {"CUDA_CACHE_DISABLE": ""},
    ],
    ids=str,
)
def test_a_switch_that_is_on_and_a_limit_leave_the_folder_to_us(environ: dict[str, str]) -> None:
    found = cache_variables("cuda", environ, ROOT)
    assert found["CUDA_CACHE_PATH"] == "/cache/drivers/nvidia-compute"
    assert not found.keys() & environ.keys()


def test_pocl_needs_its_folder_also_without_a_cache() -> None:
    """It puts its own files there, and lists no device without the folder."""
    assert "POCL_CACHE_DIR" in cache_variables("opencl", {"POCL_KERNEL_CACHE": "0"}, ROOT)


@given(
    environ=st.dictionaries(
        st.sampled_from([*VARIABLES, "HOME", "XDG_CACHE_HOME"]),
        st.sampled_from(["", "0", "1", "true", "False", "/own", "512M", "🚀"]),
    ),
    backend=st.sampled_from([row.name for row in BACKENDS]),
)
def test_no_variable_of_the_user_is_ever_changed(environ: dict[str, str], backend: str) -> None:
    added = cache_variables(backend, environ, ROOT)
    assert not added.keys() & environ.keys()
    for cache in caches_of(backend):
        chosen = switched_off(cache, environ) or users_place(cache, environ)
        # A driver for which the user has chosen gets nothing of ours; each other one a folder.
        assert (cache.places[0] in added) is not bool(chosen)
        if chosen:
            others = {
                name for each in caches_of(backend) if each is not cache for name in each.given
            }
            assert not added.keys() & (cache.given.keys() - others)


def test_the_variables_reach_the_program() -> None:
    """None of them is among those that could load foreign code, which are dropped."""
    for backend in DOCUMENTED:
        added = cache_variables(backend, {}, ROOT)
        build = Build(Path("/b"), "llama-server", backend)
        assert environment(added, build) == added
