"""A small source in upstream's forms: workflows, CMake files and arguments, to read and to edit."""

from collections.abc import Mapping

from tsuku_publish.upstream.source.tree import SourceTree

RELEASE = ".github/workflows/release.yml"
PUBLISH = ".github/workflows/release-publish.yml"
TAG_ACTION = ".github/actions/get-tag-name/action.yml"
CUDA_ACTION = ".github/actions/windows-setup-cuda/action.yml"
CUDA_LISTS = "ggml/src/ggml-cuda/CMakeLists.txt"
ARGUMENTS = "common/arg.cpp"

FILES: Mapping[str, str] = {
    RELEASE: """\
name: Release
on:
  workflow_dispatch:
  push:
    branches: [master]
env:
  BRANCH_NAME: ${{ github.head_ref || github.ref_name }}
  ARGS: "-DGGML_RPC=ON"
jobs:
  check:
    runs-on: ubuntu-slim
    outputs:
      go: ${{ steps.check.outputs.go }}
      tag: ${{ steps.tag.outputs.name }}
    steps:
      - id: check
        run: |
          if echo "$MESSAGE" | grep -q 'no release'; then
            echo "go=false" >> $GITHUB_OUTPUT
          else
            echo "go=true" >> $GITHUB_OUTPUT
          fi
      - id: tag
        uses: ./.github/actions/get-tag-name
  macos:
    needs: check
    if: ${{ needs.check.outputs.go == 'true' }}
    strategy:
      matrix:
        include:
          - build: arm64
            os: macos-26
            defines: "-DCMAKE_OSX_DEPLOYMENT_TARGET=13.3"
          - build: x64
            os: macos-15-intel
            defines: "-DGGML_METAL=OFF -DCMAKE_OSX_DEPLOYMENT_TARGET=13.3"
    runs-on: ${{ matrix.os }}
    steps:
      - run: |
          cmake -B build ${{ matrix.defines }} \\
            -DLLAMA_BUILD_BORINGSSL=ON \\
            ${{ env.ARGS }}
          cmake --build build
      - run: |
          cp LICENSE build/bin/
          tar -czvf llama-${{ needs.check.outputs.tag }}-bin-macos-${{ matrix.build }}.tar.gz -s ",a,b," -C build/bin .
      - uses: actions/upload-artifact@v7
        with:
          path: llama-${{ needs.check.outputs.tag }}-bin-macos-${{ matrix.build }}.tar.gz
  linux:
    if: ${{ needs.check.outputs.go == 'true' }}
    strategy:
      matrix:
        build: [x64, arm64]
        include:
          - build: x64
            os: ubuntu-22.04
          - build: arm64
            os: ubuntu-24.04-arm
    runs-on: ${{ matrix.os }}
    steps:
      - run: sudo apt-get install build-essential libssl-dev
      - run: cmake -B build -DGGML_NATIVE=OFF ${{ env.ARGS }}
      - run: tar -czvf llama-${{ needs.check.outputs.tag }}-bin-ubuntu-${{ matrix.build }}.tar.gz -C build/bin .
      - uses: actions/upload-artifact@v7
        with:
          path: llama-${{ needs.check.outputs.tag }}-bin-ubuntu-${{ matrix.build }}.tar.gz
  linux-cuda:
    strategy:
      matrix:
        include:
          - cuda: '12.8.2'
            label: '12.8'
          - cuda: '13.4.1'
            label: '13.4'
    runs-on: ubuntu-24.04
    container: nvidia/cuda:${{ matrix.cuda }}-devel-ubuntu24.04
    steps:
      - run: apt-get install -y libssl-dev
      - run: cmake -B build -DGGML_NATIVE=OFF -DGGML_CUDA=ON
      - run: tar -czvf llama-${{ needs.check.outputs.tag }}-bin-ubuntu-cuda-${{ matrix.label }}-x64.tar.gz -C build/bin .
      - uses: actions/upload-artifact@v7
        with:
          path: llama-${{ needs.check.outputs.tag }}-bin-ubuntu-cuda-${{ matrix.label }}-x64.tar.gz
      - run: |
          cp -L /usr/local/cuda/lib64/libcudart.so.12 ./cudart/
          tar -czvf cudart-llama-${{ needs.check.outputs.tag }}-bin-ubuntu-cuda-${{ matrix.label }}-x64.tar.gz -C ./cudart .
      - uses: actions/upload-artifact@v7
        with:
          path: cudart-llama-${{ needs.check.outputs.tag }}-bin-ubuntu-cuda-${{ matrix.label }}-x64.tar.gz
  windows-cpu:
    runs-on: windows-2025
    strategy:
      matrix:
        arch: [x64, arm64]
    steps:
      - run: |
          cmake -S . -B build ^
            -D CMAKE_TOOLCHAIN_FILE=cmake/${{ matrix.arch }}-windows-llvm.cmake ^
            -DLLAMA_BUILD_BORINGSSL=${{ matrix.arch == 'x64' && 'ON' || 'ON' }} ^
            -DGGML_OPENMP_FETCH=ON
      - run: 7z a -snl llama-bin-win-cpu-${{ matrix.arch }}.zip .\\build\\bin\\Release\\*
      - uses: actions/upload-artifact@v7
        with:
          path: llama-bin-win-cpu-${{ matrix.arch }}.zip
  windows-cuda:
    runs-on: windows-2022
    strategy:
      matrix:
        cuda: ['12.4', '13.4']
        arch: [x64, arm64]
        exclude:
          - cuda: '12.4'
            arch: arm64
    steps:
      - uses: ./.github/actions/windows-setup-cuda
        with:
          version: ${{ matrix.cuda }}
      - run: |
          cmake -S . -B build `
            -DGGML_NATIVE=OFF -DGGML_CPU=OFF -DGGML_CUDA=ON `
            -DCMAKE_TOOLCHAIN_FILE=cmake/${{ matrix.arch }}-windows-llvm.cmake
      - run: 7z a -snl llama-bin-win-cuda-${{ matrix.cuda }}-${{ matrix.arch }}.zip .\\ggml-cuda.dll
      - uses: actions/upload-artifact@v7
        with:
          path: llama-bin-win-cuda-${{ matrix.cuda }}-${{ matrix.arch }}.zip
  linux-rocm:
    runs-on: ubuntu-24.04
    strategy:
      matrix:
        include:
          - version: "10.0.0"
            targets: "gfx1030;gfx1100"
    steps:
      - run: pip install "rocm[libraries,devel]==${{ matrix.version }}"
      - run: echo "SHORT=$(echo '${{ matrix.version }}' | cut -d '.' -f 1,2)" >> $GITHUB_ENV
      - run: cmake -B build -DGGML_HIP=ON -DGPU_TARGETS="${{ matrix.targets }}" -DLLAMA_OPENSSL=OFF
      - run: tar -czvf llama-${{ needs.check.outputs.tag }}-bin-ubuntu-rocm-${{ env.SHORT }}-x64.tar.gz -C build/bin .
      - uses: actions/upload-artifact@v7
        with:
          path: llama-${{ needs.check.outputs.tag }}-bin-ubuntu-rocm-${{ env.SHORT }}-x64.tar.gz
""",
    PUBLISH: """\
name: Publish Release
on:
  workflow_run:
    workflows: [Release]
    branches: [master]
env:
  BRANCH_NAME: master
jobs:
  publish:
    if: ${{ github.event.workflow_run.conclusion == 'success' }}
    runs-on: ubuntu-latest
    steps:
      - id: tag
        uses: ./.github/actions/get-tag-name
      - run: |
          mkdir -p release
          for arch in x64 arm64; do
            cpu_zip="artifact/llama-bin-win-cpu-${arch}.zip"
            for target_zip in artifact/llama-bin-win-*-${arch}.zip; do
              if [[ "$target_zip" == "$cpu_zip" ]]; then
                continue
              fi
            done
          done
          for zip_file in artifact/llama-bin-win-*.zip; do
            base_name=$(basename "$zip_file" .zip)
            zip_name="llama-${{ steps.tag.outputs.name }}-${base_name#llama-}.zip"
            mv "$zip_file" "release/$zip_name"
          done
          mv -v artifact/*.tar.gz release
      - run: tar -czvf release/llama-${{ steps.tag.outputs.name }}-ui.tar.gz -C ./ui .
      - uses: actions/attest@v4
        with:
          subject-path: 'release/*'
      - uses: ggml-org/action-create-release@v1
        with:
          tag_name: ${{ steps.tag.outputs.name }}
""",
    TAG_ACTION: """\
outputs:
  name:
    value: ${{ steps.tag.outputs.name }}
runs:
  using: composite
  steps:
    - id: tag
      run: |
        COUNT="$(git rev-list --count HEAD)"
        if [[ "${{ env.BRANCH_NAME }}" == "master" || "${{ env.BRANCH_NAME }}" == "b${COUNT}" ]]; then
          echo "name=b${COUNT}" >> $GITHUB_OUTPUT
        else
          echo "name=$(hostname)-b${COUNT}" >> $GITHUB_OUTPUT
        fi
""",
    CUDA_ACTION: """\
inputs:
  version:
    required: true
runs:
  using: composite
  steps:
    - if: ${{ inputs.version == '12.4' }}
      run: curl -O "https://example/cuda_nvcc/windows-x86_64/cuda_nvcc-windows-x86_64-12.4.131-archive.zip"
    - if: ${{ inputs.version == '13.4' }}
      run: curl -O "https://example/cuda_nvcc/windows-x86_64/cuda_nvcc-windows-x86_64-13.4.59-archive.zip"
""",
    "CMakeLists.txt": 'option(LLAMA_OPENSSL "llama: use openssl" ON)\n',
    "ggml/CMakeLists.txt": """\
if (APPLE)
    set(GGML_METAL_DEFAULT ON)
else()
    set(GGML_METAL_DEFAULT OFF)
endif()
option(GGML_METAL        "ggml: use Metal"        ${GGML_METAL_DEFAULT})
option(GGML_OPENMP       "ggml: use OpenMP"       ON)
option(GGML_OPENMP_FETCH "ggml: fetch LLVM OpenMP" OFF)
""",
    CUDA_LISTS: """\
find_package(CUDAToolkit)
if (CUDAToolkit_FOUND)
    if (NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        # no suffix == both PTX and device code
        if (GGML_NATIVE AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL "11.6")
            set(CMAKE_CUDA_ARCHITECTURES "native")
        else()
            if (CUDAToolkit_VERSION VERSION_LESS "13")
                list(APPEND CMAKE_CUDA_ARCHITECTURES 50-virtual)
            endif ()
            list(APPEND CMAKE_CUDA_ARCHITECTURES 75-virtual 86-real)
            if (CUDAToolkit_VERSION VERSION_GREATER_EQUAL "12.8")
                list(APPEND CMAKE_CUDA_ARCHITECTURES 120a-real)
            endif()
        endif()
    endif()
    enable_language(CUDA)
endif()
""",
    "vendor/cpp-httplib/CMakeLists.txt": """\
if (LLAMA_BUILD_BORINGSSL)
elseif (LLAMA_BUILD_LIBRESSL)
elseif (LLAMA_OPENSSL)
endif()
""",
    "cmake/x64-windows-llvm.cmake": """\
set( CMAKE_SYSTEM_NAME Windows )
set( CMAKE_SYSTEM_PROCESSOR x86_64 )
""",
    "cmake/arm64-windows-llvm.cmake": """\
set( CMAKE_SYSTEM_NAME Windows )
set( CMAKE_SYSTEM_PROCESSOR arm64 )
""",
    ARGUMENTS: """\
static std::initializer_list<enum llama_example> mmproj_examples = {
    LLAMA_EXAMPLE_MTMD,  // multimodal
    LLAMA_EXAMPLE_SERVER,
};
    auto add_opt = [&](common_arg arg) { };
    // add_opt(common_arg( a comment
    add_opt(common_arg(
        {"-m", "--model"}, "FNAME",
        "a model, with a (parenthesis",
        [](common_params & params, const std::string & value) { f(value, '"'); }
    ).set_env("LLAMA_ARG_MODEL"));
    add_opt(common_arg(
        {"--mmap"}, {"--no-mmap"},
        string_format("map (default: %s)", "x, y"),
        [](common_params & params, bool value) { params.mmap = value; }
    ).set_examples({LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI}).set_env("LLAMA_ARG_MMAP"));
    add_opt(common_arg(
        {"--scale"}, "FNAME", "SCALE",
        "two values",
        [](common_params & params, const std::string & a, const std::string & b) { }
    ).set_excludes({LLAMA_EXAMPLE_CLI}));
    add_opt(common_arg(
        {"--ppl"},
        "not of the server",
        [](common_params & params) { }
    ).set_examples({LLAMA_EXAMPLE_IMATRIX}));
    add_opt(common_arg(
        // note: "-mm" comes after "--scale"
        {"-mm", "--mmproj"}, "FILE",
        "of a list with a name",
        [](common_params & params, const std::string & value) { }
    ).set_examples(mmproj_examples).set_env("LLAMA_ARG_MMPROJ"));
""",
}
"""Each file by its path; written by hand, with what upstream's own files have of each kind."""


def edited(*edits: tuple[str, str, str]) -> SourceTree:
    """The source after edits, each a path, a text that is there once, and what replaces it."""
    files = dict(FILES)
    for path, old, new in edits:
        assert files[path].count(old) == 1, (path, old)
        files[path] = files[path].replace(old, new)
    return SourceTree(files, "b100")
