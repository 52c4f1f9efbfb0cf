"""The files of a tree that two builds of one release make, as a decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.archive.composing import compose
from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.ground.errors import CannotCombine
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry

PLUGIN = "libggml-vulkan.so"


def file(path: str, content: str = "") -> FileEntry:
    return FileEntry(path, len(content), (content or path).encode().hex().ljust(64, "0")[:64])


FIRST = (
    file("llama-server", "by nvcc's image"),
    file("libggml-base.so", "one"),
    file("libggml-cpu-haswell.so", "one"),
    file("libggml-cuda.so"),
    file("LICENSE"),
)
SECOND = (
    file("llama-server", "by another image"),
    file("libggml-base.so", "two"),
    file("libggml-cpu-haswell.so", "two"),
    file("libggml-cpu-alderlake.so", "two"),
    file(PLUGIN),
    file("LICENSE"),
    file("llama-new-tool"),
)


def paths(entries: tuple[TreeEntry, ...]) -> list[str]:
    return [entry.path for entry in entries]


def test_the_plugin_joins_the_first_build_and_its_own_libraries_stay_away() -> None:
    assert paths(compose(FIRST, SECOND, "vulkan")) == [PLUGIN, "llama-new-tool"]


def test_a_plugin_with_numbered_names_and_links_comes_as_a_whole() -> None:
    numbered = (
        LinkEntry(PLUGIN, f"{PLUGIN}.0"),
        LinkEntry(f"{PLUGIN}.0", f"{PLUGIN}.0.17.0"),
        file(f"{PLUGIN}.0.17.0"),
    )
    assert len(compose(FIRST, numbered, "vulkan")) == 3


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (FIRST, (), "no plugin for vulkan"),
        (FIRST, (file("libggml-cuda.so"),), "no plugin for vulkan"),
        ((*FIRST, file(PLUGIN, "other")), SECOND, "has the plugin for vulkan already"),
        # Under another name it is the same plugin: ggml would load one of the two.
        ((*FIRST, file("ggml-vulkan.so")), SECOND, "has the plugin for vulkan already"),
        ((*FIRST, file(f"{PLUGIN}.0")), SECOND, "has the plugin for vulkan already"),
        ((*FIRST, file("lib/libggml-vulkan.so")), SECOND, "has the plugin for vulkan already"),
        ((*FIRST, file("libssl.so.3", "1")), (*SECOND, file("libssl.so.3", "2")), "libssl.so.3"),
        ((*FIRST, file("x.abi3.so", "1")), (*SECOND, file("x.abi3.so", "2")), "x.abi3.so"),
        ((*FIRST, file("x.y.dll", "1")), (*SECOND, file("x.y.dll", "2")), "x.y.dll"),
        ((*FIRST, file("x.so.1-rc", "1")), (*SECOND, file("x.so.1-rc", "2")), "x.so.1-rc"),
        ((*FIRST, file("x.1.dylib", "1")), (*SECOND, file("x.1.dylib", "2")), "x.1.dylib"),
        ((*FIRST, file("data")), (*SECOND, file("data/one")), "data"),
        ((*FIRST, file("data/one")), (*SECOND, file("data")), "data"),
        ((*FIRST, file("readme")), (*SECOND, file("README")), "README"),
        ((*FIRST, file("a")), (*SECOND, LinkEntry("a", "LICENSE")), "a file in one, a link"),
        (
            (*FIRST, LinkEntry("a", "LICENSE")),
            (*SECOND, LinkEntry("a", "llama-server")),
            "a link to LICENSE in one, to llama-server",
        ),
        (FIRST, (*SECOND, LinkEntry("libx.so", "libggml-cpu-alderlake.so")), "link"),
        # The plugin would be the first build's file.
        (
            (*FIRST, file("lib/code", "1")),
            (file("lib/code", "2"), LinkEntry(PLUGIN, "lib/code")),
            "a link to lib/code, which is not the same in both",
        ),
    ],
)
def test_a_path_with_two_meanings_is_refused(
    first: tuple[TreeEntry, ...], second: tuple[TreeEntry, ...], told: str
) -> None:
    with pytest.raises(CannotCombine) as caught:
        compose(first, second, "vulkan")
    assert told in f"{caught.value.message} {caught.value.facts}"


def test_a_link_may_lead_to_what_both_builds_have() -> None:
    shared, link = file("lib/data", "same"), LinkEntry("lib/link", "../lib/data")
    assert link in compose((*FIRST, shared), (*SECOND, shared, link), "vulkan")


def test_the_same_library_of_another_project_is_no_conflict() -> None:
    shared = file("libssl.so.3", "same")
    assert compose((*FIRST, shared), (*SECOND, shared), "vulkan")


NAMES = st.sampled_from(
    [PLUGIN, "libggml-cuda.so", "libggml-cpu.so", "llama-server", "libssl.so.3", "a", "a/b", "A"]
)
ENTRIES = st.lists(
    st.builds(file, NAMES, st.sampled_from(["1", "2"]))
    | st.builds(LinkEntry, NAMES, st.sampled_from(["llama-server", "a"])),
    max_size=6,
    unique_by=lambda entry: entry.path,
)


@given(ENTRIES, ENTRIES)
def test_a_composed_tree_has_each_path_once_and_all_of_the_first_build(
    first: list[TreeEntry], second: list[TreeEntry]
) -> None:
    try:
        added = compose(first, second, "vulkan")
    except CannotCombine:
        return
    tree = [*first, *added]
    names = Names()
    for entry in tree:
        # This raises for a path that is there twice, in two spellings, or below a file.
        if isinstance(entry, LinkEntry):
            names.link(checked_parts(entry.path), entry.target)
        else:
            names.add(checked_parts(entry.path), "file")
    assert set(added) <= set(second)
    assert any(entry.path == PLUGIN for entry in added)
    # A name that is left out was in the first build, or is another backend's plugin.
    left = {entry.path for entry in second} - set(paths(added)) - {entry.path for entry in first}
    assert left <= {"libggml-cuda.so", "libggml-cpu.so"}
