"""What upstream's source says, read from a small one in its forms; and edits of it.

What a real source must give was read in it by a person: ``test_upstream_sources_of_the_index``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.upstream_source import (
    ARGUMENTS,
    CUDA_ACTION,
    CUDA_LISTS,
    FILES,
    PUBLISH,
    RELEASE,
    TAG_ACTION,
    edited,
)

from tsuku_publish.upstream.source.arguments import Argument
from tsuku_publish.upstream.source.expressions import UNKNOWN, Known, evaluate, filled
from tsuku_publish.upstream.source.facts import SourceFacts, differences, facts_of
from tsuku_publish.upstream.source.marked import UnreadableSource

FACTS = facts_of(edited(), "b100")
LINUX = "llama-{tag}-bin-ubuntu-x64.tar.gz"
CUDA = "llama-{tag}-bin-ubuntu-cuda-12.8-x64.tar.gz"
MAC = "llama-{tag}-bin-macos-arm64.tar.gz"
ROCM = "llama-{tag}-bin-ubuntu-rocm-10.0-x64.tar.gz"


def told(asset: str, what: str, facts: SourceFacts = FACTS) -> object:
    return facts.assets[asset][what].value


def line_of(path: str, text: str) -> str:
    """The place of the only line with a text."""
    (number,) = (n for n, line in enumerate(FILES[path].splitlines(), 1) if text in line)
    return f"{path}:{number}"


# --- what it says ---------------------------------------------------------------------------


def test_each_asset_has_the_name_of_the_release() -> None:
    assert {*FACTS.assets} == {
        *(f"llama-{{tag}}-bin-macos-{arch}.tar.gz" for arch in ("arm64", "x64")),
        *(f"llama-{{tag}}-bin-ubuntu-{arch}.tar.gz" for arch in ("arm64", "x64")),
        *(f"llama-{{tag}}-bin-ubuntu-cuda-{line}-x64.tar.gz" for line in ("12.8", "13.4")),
        *(f"cudart-llama-{{tag}}-bin-ubuntu-cuda-{line}-x64.tar.gz" for line in ("12.8", "13.4")),
        *(f"llama-{{tag}}-bin-win-cpu-{arch}.zip" for arch in ("arm64", "x64")),
        *("llama-{tag}-bin-win-cuda-12.4-x64.zip", "llama-{tag}-bin-win-cuda-13.4-x64.zip"),
        *("llama-{tag}-bin-win-cuda-13.4-arm64.zip", ROCM, "llama-{tag}-ui.tar.gz"),
    }


def test_a_fact_has_its_line() -> None:
    assert FACTS.assets[MAC]["macos"].at == line_of(RELEASE, 'defines: "-DCMAKE_OSX')
    assert FACTS.assets[ROCM]["gfx"].at == line_of(RELEASE, "targets: ")
    assert FACTS.assets[LINUX]["job"].at == line_of(RELEASE, "  linux:")
    assert FACTS.assets[CUDA]["sass"].at == line_of(CUDA_LISTS, "120a-real")
    assert FACTS.publishing["workflow"].at == line_of(PUBLISH, "actions/attest@v4")


def test_systems_platforms_and_libraries() -> None:
    assert (told(LINUX, "system"), told(LINUX, "platform")) == ("ubuntu-22.04", "linux-amd64")
    assert (told(LINUX, "https"), told(MAC, "https"), told(ROCM, "https")) == (
        *("openssl", "boringssl", "off"),
    )
    assert (told(CUDA, "system"), told(CUDA, "toolkit")) == ("ubuntu-24.04", "12.8.2")
    assert told(CUDA, "companion") == f"cudart-{CUDA}"
    assert (told(CUDA, "sass"), told(CUDA, "ptx")) == (("8.6", "12.0a"), ("5.0", "7.5"))
    assert told("llama-{tag}-bin-ubuntu-cuda-13.4-x64.tar.gz", "ptx") == ("7.5",)
    arm = "llama-{tag}-bin-win-cuda-13.4-arm64.zip"
    assert (told(arm, "platform"), told(arm, "toolkit")) == ("windows-arm64", "13.4.59")
    assert told(arm, "server from") == "llama-{tag}-bin-win-cpu-arm64.zip"
    assert (told(arm, "https"), told(arm, "openmp")) == ("boringssl", "brought along")


def test_who_publishes() -> None:
    found = {name: fact.value for name, fact in FACTS.publishing.items()}
    assert found == {
        "workflow": PUBLISH,
        "builder": RELEASE,
        "trigger": "workflow_run",
        "workflows": ("Release",),
        "branches": ("master",),
        "tag": "b{count}",
    }


def test_arguments_of_the_server() -> None:
    model, mmap, scale, projector = FACTS.arguments
    assert model == Argument(
        *(("-m", "--model"), (), "LLAMA_ARG_MODEL", 1, ("common",), ()),
        at=line_of(ARGUMENTS, '{"-m"').replace(":8", ":7"),
    )
    assert (mmap.negative, mmap.values, mmap.tools) == (("--no-mmap",), 0, ("server", "cli"))
    assert (scale.values, scale.excludes) == (2, ("cli",))
    assert (projector.names, projector.tools) == (("-mm", "--mmproj"), ("mtmd", "server"))


# --- edits ----------------------------------------------------------------------------------

EDITS: dict[str, tuple[tuple[str, str, str], list[str]]] = {
    "a runner": (
        (RELEASE, "os: ubuntu-22.04", "os: ubuntu-24.04"),
        [
            f"{LINUX}: runner ubuntu-22.04 -> ubuntu-24.04",
            f"{LINUX}: system ubuntu-22.04 -> ubuntu-24.04",
        ],
    ),
    "a container": (
        (RELEASE, "-devel-ubuntu24.04", "-devel-ubuntu26.04"),
        [
            f"llama-{{tag}}-bin-ubuntu-cuda-{line}-x64.tar.gz: {what}"
            for line, full in (("12.8", "12.8.2"), ("13.4", "13.4.1"))
            for what in (
                "system ubuntu-24.04 -> ubuntu-26.04",
                f"container nvidia/cuda:{full}-devel-ubuntu24.04 -> nvidia/cuda:{full}-devel-ubuntu26.04",
            )
        ],
    ),
    "a gfx target": (
        (RELEASE, '"gfx1030;gfx1100"', '"gfx1030;gfx1100;gfx1201"'),
        [f"{ROCM}: new gfx gfx1201"],
    ),
    "no gfx target": (
        (RELEASE, '"gfx1030;gfx1100"', '"gfx1100"'),
        [f"{ROCM}: gfx gfx1030 is gone"],
    ),
    "a deployment target": (
        (RELEASE, 'defines: "-DCMAKE_OSX_DEPLOYMENT_TARGET=13.3"', 'defines: "-DCMAKE_OSX_DEPLOYMENT_TARGET=14.0"'),
        [f"{MAC}: macos 13.3 -> 14.0"],
    ),
    "no deployment target: the runner's system": (
        (RELEASE, 'defines: "-DCMAKE_OSX_DEPLOYMENT_TARGET=13.3"', 'defines: ""'),
        [f"{MAC}: macos 13.3 -> 26.0"],
    ),
    "a workflow that a person may start": (
        (PUBLISH, "  workflow_run:\n", "  workflow_dispatch:\n  workflow_run:\n"),
        ["publishing: new by hand yes"],
    ),
    "branches": (
        (PUBLISH, "branches: [master]", "branches: [master, next]"),
        ["publishing: new branches next"],
    ),
    "a library: OpenSSL built in": (
        (RELEASE, "-DGGML_NATIVE=OFF ${{ env.ARGS }}", "-DLLAMA_BUILD_BORINGSSL=ON ${{ env.ARGS }}"),
        [
            f"llama-{{tag}}-bin-ubuntu-{arch}.tar.gz: https openssl -> boringssl"
            for arch in ("arm64", "x64")
        ],
    ),
    "a library: headers that are not installed": (
        (RELEASE, "install build-essential libssl-dev", "install build-essential"),
        [
            f"llama-{{tag}}-bin-ubuntu-{arch}.tar.gz: https openssl -> openssl if found"
            for arch in ("arm64", "x64")
        ],
    ),
    "a library: OpenMP not brought along": (
        (RELEASE, "-DGGML_OPENMP_FETCH=ON", "-DGGML_OPENMP_FETCH=OFF"),
        [
            f"llama-{{tag}}-bin-win-{name}.zip: openmp brought along -> the compiler's, if found"
            for name in ("cpu-arm64", "cpu-x64", "cuda-12.4-x64", "cuda-13.4-arm64", "cuda-13.4-x64")
        ],
    ),
    "an option's default": (
        ("CMakeLists.txt", 'openssl" ON', 'openssl" OFF'),
        [
            f"llama-{{tag}}-bin-ubuntu-{name}.tar.gz: https openssl -> off"
            for name in ("arm64", "cuda-12.8-x64", "cuda-13.4-x64", "x64")
        ],
    ),
    "a matrix: one more": (
        (RELEASE, "        cuda: ['12.4', '13.4']\n        arch: [x64, arm64]\n        exclude:\n          - cuda: '12.4'\n            arch: arm64\n", "        cuda: ['12.4', '13.4']\n        arch: [x64, arm64]\n"),
        ["llama-{tag}-bin-win-cuda-12.4-arm64.zip: new asset of the job windows-cuda"],
    ),
    "a matrix: one less": (
        (RELEASE, "cuda: ['12.4', '13.4']", "cuda: ['13.4']"),
        ["llama-{tag}-bin-win-cuda-12.4-x64.zip: asset of the job windows-cuda is gone"],
    ),
    "an architecture": (
        (CUDA_LISTS, "75-virtual 86-real", "75-virtual 86-real 89"),
        [
            f"llama-{{tag}}-bin-{name}: {what}"
            for name in (
                "ubuntu-cuda-12.8-x64.tar.gz", "ubuntu-cuda-13.4-x64.tar.gz",
                "win-cuda-12.4-x64.zip", "win-cuda-13.4-arm64.zip", "win-cuda-13.4-x64.zip",
            )
            for what in ("new sass 8.9", "new ptx 8.9")
        ],
    ),
    "the first version without an architecture": (
        (CUDA_LISTS, 'VERSION_LESS "13"', 'VERSION_LESS "12.8"'),
        [f"{CUDA}: ptx 5.0 is gone"],
    ),
    "a toolkit": (
        (CUDA_ACTION, "x86_64-12.4.131-archive", "x86_64-12.4.200-archive"),
        ["llama-{tag}-bin-win-cuda-12.4-x64.zip: toolkit 12.4.131 -> 12.4.200"],
    ),
    "what is packed": (
        (RELEASE, ".\\ggml-cuda.dll", ".\\ggml-cuda.dll .\\more.dll"),
        [
            f"llama-{{tag}}-bin-win-cuda-{name}.zip: new packs .\\more.dll"
            for name in ("12.4-x64", "13.4-arm64", "13.4-x64")
        ],
    ),
    "what is injected": (
        (PUBLISH, 'cpu_zip="artifact/llama-bin-win-cpu-${arch}.zip"', 'cpu_zip="artifact/llama-bin-win-cpu-x64.zip"'),
        ["llama-{tag}-bin-win-cpu-arm64.zip: new server from llama-{tag}-bin-win-cpu-x64.zip",
         "llama-{tag}-bin-win-cuda-13.4-arm64.zip: server from llama-{tag}-bin-win-cpu-arm64.zip -> llama-{tag}-bin-win-cpu-x64.zip"],
    ),
    "a backend": (
        (RELEASE, "-B build -DGGML_HIP=ON", "-B build -DGGML_VULKAN=ON -DGGML_HIP=ON"),
        [f"{ROCM}: new backends vulkan"],
    ),
    "a condition": (
        (RELEASE, "  linux-cuda:\n", "  linux-cuda:\n    if: ${{ vars.CUDA }}\n"),
        [
            f"llama-{{tag}}-bin-ubuntu-cuda-{line}-x64.tar.gz: new condition ${{{{ vars.CUDA }}}}"
            for line in ("12.8", "13.4")
        ],
    ),
    "a job that never runs": (
        (RELEASE, "  linux-rocm:\n", "  linux-rocm:\n    if: ${{ github.event_name == 'schedule' }}\n"),
        [f"{ROCM}: asset of the job linux-rocm is gone"],
    ),
    "the tag's rule": (
        (TAG_ACTION, 'echo "name=b${COUNT}" >>', 'echo "name=c${COUNT}" >>'),
        ["publishing: tag b{count} -> c{count}"],
    ),
    "an argument's variable": (
        (ARGUMENTS, '"LLAMA_ARG_MODEL"', '"LLAMA_ARG_MODEL_PATH"'),
        ["--model: variable LLAMA_ARG_MODEL -> LLAMA_ARG_MODEL_PATH"],
    ),
    "a list of tools that has a name": (
        (ARGUMENTS, "LLAMA_EXAMPLE_MTMD,", "LLAMA_EXAMPLE_MTMD, LLAMA_EXAMPLE_TTS,"),
        ["--mmproj: new tools tts"],
    ),
    "an argument for another tool": (
        (ARGUMENTS, "{LLAMA_EXAMPLE_IMATRIX}", "{LLAMA_EXAMPLE_IMATRIX, LLAMA_EXAMPLE_SERVER}"),
        ["--ppl: new argument --ppl"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_one_edit_gives_exactly_its_difference(name: str) -> None:
    edit, expected = EDITS[name]
    found = differences(FACTS, facts_of(edited(edit), "b101"))
    assert [str(each).rpartition(" (")[0] for each in found] == expected
    assert all(each.at.rpartition(":")[0] in FILES for each in found)


def test_an_assets_new_name_is_a_new_asset() -> None:
    name = "bin-ubuntu-rocm-${{ env.SHORT }}-x64.tar.gz"
    files = {**FILES, RELEASE: FILES[RELEASE].replace(name, name.replace("rocm", "hip"))}
    tree = type(edited())(files, "b101")
    found = differences(FACTS, facts_of(tree, "b101"))
    assert [str(each).rpartition(" (")[0] for each in found] == [
        f"{ROCM.replace('rocm', 'hip')}: new asset of the job linux-rocm",
        f"{ROCM}: asset of the job linux-rocm is gone",
    ]


def test_a_publishing_workflow_under_another_name() -> None:
    files = dict(FILES)
    files[".github/workflows/release-sign.yml"] = files.pop(PUBLISH)
    found = differences(FACTS, facts_of(type(edited())(files, "b101"), "b101"))
    (workflow,) = found
    assert (workflow.what, workflow.after) == ("workflow", ".github/workflows/release-sign.yml")


UNREADABLE = {
    "a runner of an unknown system": (RELEASE, "os: ubuntu-22.04", "os: self-made"),
    "a workflow that waits for another name": (PUBLISH, "[Release]", "[Nightly]"),
    "a function that is not known": (RELEASE, "== 'x64' && 'ON'", "== toUpper('x64') && 'ON'"),
    "a flag that only the run knows": (RELEASE, "-DGGML_NATIVE=OFF ${{ env.ARGS }}", "${{ vars.X }}"),
    "another way to move files": (PUBLISH, "mv -v artifact/*.tar.gz", "rsync artifact/*.tar.gz"),
    "a file that nothing publishes": (RELEASE, "path: llama-bin-win-cpu-${{ matrix.arch }}.zip", "path: x-${{ matrix.arch }}.zip"),
    "an architecture of another form": (CUDA_LISTS, "75-virtual 86-real", "75-virtual all-major"),
    "a toolkit that no step installs": (RELEASE, "cuda: ['12.4', '13.4']", "cuda: ['12.4', '13.5']"),
    "another chain of libraries": ("vendor/cpp-httplib/CMakeLists.txt", "elseif (LLAMA_OPENSSL)", "elseif (LLAMA_WOLFSSL)"),
    "a call that an argument did not have": (ARGUMENTS, '.set_env("LLAMA_ARG_MODEL")', ".set_alias(1)"),
    "a list of tools that the file does not have": (
        ARGUMENTS, "set_examples(mmproj_examples)", "set_examples(video_examples)"
    ),
    "nobody attests": (PUBLISH, "actions/attest@v4", "actions/other@v4"),
    "another subject": (PUBLISH, "'release/*'", "'other/*'"),
    "no tag": (TAG_ACTION, "git rev-list --count HEAD", "git describe"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_an_error_with_its_place(name: str) -> None:
    with pytest.raises(UnreadableSource) as caught:
        facts_of(edited(UNREADABLE[name]), "b101")
    path, _, rest = str(caught.value).partition(":")
    assert path in {*FILES, ".github/workflows/"} or path in FILES
    assert rest.split(":")[0].isdigit() or path == ".github/workflows/"


# --- expressions ----------------------------------------------------------------------------


def value_of(text: str, **matrix: Known) -> Known:
    def lookup(path: tuple[str, ...]) -> Known:
        return matrix.get(path[-1])

    return evaluate(text, lookup, "here:1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("matrix.a == 'X64'", True),
        ("matrix.a == 'x64' && 'yes' || 'no'", "yes"),
        ("matrix.a != 'x64' && 'yes' || 'no'", "no"),
        ("contains(matrix.a, 'X6')", True),
        ("startsWith(matrix.a, 'x') && endsWith(matrix.a, '64')", True),
        ("format('{0}-{1}{{', matrix.a, 1.5)", "x64-1.5{"),
        ("matrix['a']", "x64"),
        ("!(matrix.a == 'x64')", False),
        ("matrix.missing == ''", True),
        ("0 == false", True),
        ("null == 0", True),
        ("'1' == 1", True),
        ("'a' == 1", False),
        ("'it''s'", "it's"),
        ("2 < 10", True),
        ("matrix.unknown == 'x' && false", False),
        ("true || matrix.unknown", True),
        ("matrix.unknown || true", UNKNOWN),
        ("matrix.unknown == 'x'", UNKNOWN),
    ],
)
def test_expressions_as_the_build_service_evaluates_them(text: str, value: Known) -> None:
    assert value_of(text, a="x64", unknown=UNKNOWN) == value


@pytest.mark.parametrize("text", ["", "a b", "matrix.", "contains('a')", "(1", "f(1)", "1 +", "'"])
def test_what_is_no_expression_is_an_error(text: str) -> None:
    with pytest.raises(UnreadableSource, match=r"^here:1: the expression"):
        value_of(text)


_LEAVES = st.one_of(
    st.tuples(st.just("'{}'"), st.sampled_from(["", "a", "B", "x64"])).map(
        lambda each: (each[0].format(each[1]), each[1])
    ),
    st.sampled_from([("true", True), ("false", False)]),
    st.integers(0, 99).map(lambda each: (str(each), float(each))),
)


def _joined(inner: st.SearchStrategy[tuple[str, Known]]) -> st.SearchStrategy[tuple[str, Known]]:
    """An expression of two others, with the value that Python's own operators give."""
    both = st.tuples(inner, inner)
    return st.one_of(
        both.map(lambda e: (f"({e[0][0]} && {e[1][0]})", e[0][1] and e[1][1])),
        both.map(lambda e: (f"({e[0][0]} || {e[1][0]})", e[0][1] or e[1][1])),
        inner.map(lambda e: (f"!{e[0]}", not e[1])),
        inner.map(lambda e: (f"({e[0]} == {e[0]})", True)),
        inner.map(lambda e: (f"({e[0]} != {e[0]})", False)),
    )


@given(st.recursive(_LEAVES, _joined, max_leaves=12))
def test_an_expression_has_the_value_of_its_parts(made: tuple[str, Known]) -> None:
    text, value = made
    assert value_of(text) == value
    spaced = text.replace("(", " ( ").replace("&&", "  && ")
    assert value_of(spaced) == value


@given(st.text(alphabet="ab .()'!&|=matrix,[]0", max_size=30))
def test_any_text_is_evaluated_or_is_an_error_with_its_place(text: str) -> None:
    try:
        value_of(text)
    except UnreadableSource as error:
        if not str(error).startswith("here:1: "):
            raise


def test_a_text_with_an_unknown_value_is_unknown() -> None:
    assert filled("a-${{ 1 }}-${{ 'b' }}", lambda _: None, "x:1") == "a-1-b"
    assert filled("a-${{ x.y }}", lambda _: UNKNOWN, "x:1") is UNKNOWN
