"""Models in the caches of other programs: each layout, what is left out, and nothing changed."""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.growth import grows_linearly, steps
from support.model_headers import F16, write_header
from support.model_shelves import (
    MODEL,
    hub_file,
    ollama_model,
    small_model,
    small_projector,
    split_model,
)

from tsuku_llm.model_caches import files
from tsuku_llm.model_caches.files import walk
from tsuku_llm.model_caches.finding import FoundModels, find_models, local_models
from tsuku_llm.model_caches.naming import LocalModel, matching
from tsuku_llm.model_caches.places import ModelPlace, places_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


def found_in(folder: Path, source: str = "folder") -> FoundModels:
    return find_models([ModelPlace(source, str(folder), named=True)])


def names(found: FoundModels) -> list[str]:
    return [model.name for model in found.models]


def only(found: FoundModels) -> LocalModel:
    (model,) = found.models
    return model


# --- where ---------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user of Linux."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def places(environ: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for place in places_of(environ, ()):
        found.setdefault(place.source, []).append(place.folder)
    return found


def test_without_settings_each_program_has_its_own_folder(home: Path) -> None:
    assert places({}) == {
        "huggingface": [f"{home}/.cache/huggingface/hub"],
        "llama.cpp": [f"{home}/.cache/llama.cpp"],
        "lm-studio": [f"{home}/.lmstudio/models", f"{home}/.cache/lm-studio/models"],
        "ollama": [f"{home}/.ollama/models", "/usr/share/ollama/.ollama/models"],
    }


@pytest.mark.parametrize(
    ("environ", "source", "folder"),
    [
        ({"HF_HOME": "/d/hf"}, "huggingface", "/d/hf/hub"),
        ({"HF_HOME": "~/hf"}, "huggingface", "~/hf/hub"),
        ({"HF_HOME": "/d/hf", "HF_HUB_CACHE": "/d/c"}, "huggingface", "/d/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/d/old"}, "huggingface", "/d/old"),
        ({"XDG_CACHE_HOME": "/x"}, "huggingface", "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "llama.cpp", "/x/llama.cpp"),
        ({"XDG_CACHE_HOME": "/x", "LLAMA_CACHE": "/l"}, "llama.cpp", "/l"),
        ({"HF_HUB_CACHE": ""}, "huggingface", "~/.cache/huggingface/hub"),
        ({"OLLAMA_MODELS": '"/o"'}, "ollama", "/o"),
    ],
)
def test_a_variable_moves_a_cache(
    environ: dict[str, str], source: str, folder: str, home: Path
) -> None:
    assert places(environ)[source][0] == folder.replace("~", str(home))


def test_other_systems_have_other_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert places({})["llama.cpp"] == [f"{home}/Library/Caches/llama.cpp"]
    assert places({})["ollama"] == [f"{home}/.ollama/models"]
    monkeypatch.setattr(sys, "platform", "win32")
    assert places({}).get("llama.cpp") is None


def test_lm_studio_tells_its_home_and_the_folder_of_its_models(home: Path) -> None:
    moved = home / "big" / "lms"
    moved.mkdir(parents=True)
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": "/big/models"}))
    lm_studio = places({})["lm-studio"]
    assert lm_studio[:2] == ["/big/models", f"{moved}/models"]
    assert f"{home}/.lmstudio/models" in lm_studio


@pytest.mark.parametrize("settings", ["", "[]", "{", '{"downloadsFolder": 3}', "[" * 100_000])
def test_settings_of_lm_studio_that_cannot_be_read_say_nothing(settings: str, home: Path) -> None:
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(settings)
    assert ModelPlace("lm-studio", f"{home}/.lmstudio/models") in places_of({}, ())


def test_a_folder_of_two_programs_is_read_as_both_keep_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On Linux there may be models of a service of Ollama, too.
    monkeypatch.setattr(sys, "platform", "darwin")
    hub_file(home, "org/M", "M-Q8_0.gguf")
    small_model(home / "flat.gguf")
    environ = {"LLAMA_CACHE": str(home), "HF_HUB_CACHE": str(home)}
    assert names(local_models(environ, ())) == ["flat", "org/M:Q8_0"]


# --- each layout ---------------------------------------------------------------------------


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    link = hub_file(tmp_path, "org/Model-GGUF", "Model-Q4_K_M.gguf", general__file_type=15)
    model = only(found_in(tmp_path, "huggingface"))
    assert model.name == "org/Model-GGUF:Q4_K_M"
    # The link: the blob's name tells nobody anything.
    assert model.path == str(link)
    assert model.size == link.stat().st_size
    assert (model.quantisation, model.context, model.architecture) == ("Q4_K_M", 4096, "llama")


def test_two_revisions_have_a_file_once_and_the_main_one_counts(tmp_path: Path) -> None:
    hub_file(tmp_path, "org/M", "M-Q8_0.gguf", revision="old")
    hub_file(tmp_path, "org/M", "only-old-Q4_0.gguf", revision="old")
    new = hub_file(tmp_path, "org/M", "M-Q8_0.gguf", revision="zzz")
    found = found_in(tmp_path, "huggingface")
    assert names(found) == ["org/M:Q4_0", "org/M:Q8_0"]
    assert found.models[1].path == str(new)


def test_the_older_cache_of_llama_cpp(tmp_path: Path) -> None:
    small_model(tmp_path / "org_M-GGUF_M-Q4_0.gguf")
    small_projector(tmp_path / "org_M-GGUF_mmproj-F16.gguf")
    small_model(tmp_path / "by-url.gguf")
    found = found_in(tmp_path, "llama.cpp")
    assert names(found) == ["by-url", "org_M-GGUF_M-Q4_0"]
    assert found.models[1].projector == str(tmp_path / "org_M-GGUF_mmproj-F16.gguf")
    assert found.models[0].projector is None


def test_the_newer_cache_of_llama_cpp_is_that_of_hugging_face(tmp_path: Path) -> None:
    hub_file(tmp_path, "org/M", "M-Q8_0.gguf")
    small_model(tmp_path / "old.gguf")
    assert names(found_in(tmp_path, "llama.cpp")) == ["old", "org/M:Q8_0"]


def test_lm_studio_keeps_publishers_and_repositories(tmp_path: Path) -> None:
    folder = tmp_path / "lmstudio-community" / "gemma-GGUF"
    small_model(folder / "gemma-Q4_K_M.gguf")
    small_model(folder / "gemma-Q8_0.gguf")
    projector = small_projector(folder / "mmproj-model-f16.gguf")
    found = found_in(tmp_path, "lm-studio")
    assert names(found) == [f"lmstudio-community/gemma-GGUF:{tag}" for tag in ("Q4_K_M", "Q8_0")]
    assert {model.projector for model in found.models} == {str(projector)}


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("qwen2.5:7b", "registry.ollama.ai"),
        ("someone/mine:latest", "registry.ollama.ai"),
        ("org/M-GGUF:Q4_K_M", "hf.co"),
    ],
)
def test_the_manifests_of_ollama_name_the_blobs(name: str, host: str, tmp_path: Path) -> None:
    blob = ollama_model(tmp_path, name, projector=True, host=host)
    found = found_in(tmp_path, "ollama")
    model = only(found)
    assert model.name == (f"hf.co/{name}" if host == "hf.co" else name)
    assert model.path == str(blob)
    assert model.projector
    assert model.projector != model.path
    assert found.notes == ()


def test_each_name_that_ollama_has_for_one_blob_is_a_name(tmp_path: Path) -> None:
    """``ollama cp`` is the way to a second name there, and copies no file.

    Ollama's issues 5914 and 8409 advise it, and ``ollama list`` has both names: only the first
    of them, by the alphabet, could be served here.
    """
    ollama_model(tmp_path, "m:7b")
    manifests = tmp_path / "manifests" / "registry.ollama.ai" / "library"
    for copy in ("m/latest", "mine/latest"):
        (manifests / copy).parent.mkdir(exist_ok=True)
        (manifests / copy).write_bytes((manifests / "m/7b").read_bytes())
    place = ModelPlace("ollama", str(tmp_path))
    found = find_models([place, place])
    assert names(found) == ["m:7b", "m:latest", "mine:latest"]
    assert len({model.path for model in found.models}) == 1
    assert [model.name for model in matching("m", found.models)] == ["m:latest"]


@pytest.mark.parametrize(
    ("manifest", "note"),
    [
        ("{", "is not a manifest"),
        ('{"layers": 3}', "is not a manifest"),
        (
            '{"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "x"}]}',
            "no GGUF",
        ),
        ('{"layers": null}', "no GGUF"),
        (
            '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../x"}]}',
            "names no file",
        ),
        (
            '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:'
            + "0" * 64
            + '"}]}',
            "ollama pull m:x",
        ),
    ],
)
def test_a_manifest_without_a_model_is_left_out(manifest: str, note: str, tmp_path: Path) -> None:
    ollama_model(tmp_path, "good:1b")
    bad = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m" / "x"
    bad.parent.mkdir(parents=True)
    bad.write_text(manifest)
    found = found_in(tmp_path, "ollama")
    assert names(found) == ["good:1b"]
    assert any(note in each for each in found.notes), found.notes


# --- what is one model ---------------------------------------------------------------------


def test_a_split_model_is_one(tmp_path: Path) -> None:
    parts = split_model(tmp_path, "big-Q4_K_M", 3)
    model = only(found_in(tmp_path))
    assert model.name == "big-Q4_K_M"
    assert model.path == str(parts[0])
    assert model.files == tuple(map(str, parts))
    assert model.size == sum(part.stat().st_size for part in parts)


def test_a_split_model_without_a_part_is_left_out(tmp_path: Path) -> None:
    parts = split_model(tmp_path, "big", 3)
    parts[1].unlink()
    small_model(tmp_path / "renamed.gguf", split__no=0, split__count=2)
    found = found_in(tmp_path)
    assert found.models == ()
    assert any("2 of 3 parts" in note for note in found.notes)
    assert any("renamed.gguf is one part" in note for note in found.notes)


def test_a_file_with_several_names_is_listed_once(tmp_path: Path) -> None:
    small_model(tmp_path / "a" / "m.gguf")
    os.link(tmp_path / "a" / "m.gguf", tmp_path / "hard.gguf")
    (tmp_path / "soft.gguf").symlink_to("a/m.gguf")
    (tmp_path / "again").symlink_to("a")
    assert names(found_in(tmp_path)) == ["hard"]
    both = [ModelPlace("folder", str(tmp_path / "a")), ModelPlace("folder", str(tmp_path))]
    assert names(find_models(both)) == ["m"]


def test_names_are_unique(tmp_path: Path) -> None:
    hub_file(tmp_path / "hub", "org/M", "M-Q8_0.gguf")
    hub_file(tmp_path / "hub", "org/M", "other/M2-Q8_0.gguf")
    small_model(tmp_path / "lms" / "org" / "N" / "N-Q8_0.gguf")
    hub_file(tmp_path / "hub", "org/N", "N-Q8_0.gguf")
    small_model(tmp_path / "own" / "x" / "m.gguf")
    small_model(tmp_path / "own" / "y" / "m.gguf")
    found = find_models(
        [
            ModelPlace("huggingface", str(tmp_path / "hub")),
            ModelPlace("lm-studio", str(tmp_path / "lms")),
            ModelPlace("folder", str(tmp_path / "own")),
        ]
    )
    assert set(names(found)) == {
        "org/M/M-Q8_0",
        "org/M/other/M2-Q8_0",
        "huggingface/org/N:Q8_0",
        "lm-studio/org/N:Q8_0",
        "x/m",
        "y/m",
    }


def test_a_projector_of_a_mixed_folder_goes_to_the_model_of_its_name(tmp_path: Path) -> None:
    small_model(tmp_path / "llama-3-8b-Q4_K_M.gguf")
    small_model(tmp_path / "gemma-3-4b-it-Q4_K_M.gguf")
    projector = small_projector(tmp_path / "mmproj-gemma-3-4b-it-f16.gguf")
    found = {model.name: model.projector for model in found_in(tmp_path).models}
    assert found == {"gemma-3-4b-it-Q4_K_M": str(projector), "llama-3-8b-Q4_K_M": None}


def test_the_projector_with_the_closest_bits_is_taken(tmp_path: Path) -> None:
    hub_file(tmp_path, "org/M", "M-Q8_0.gguf")
    hub_file(tmp_path, "org/M", "mmproj-F32.gguf")
    hub_file(tmp_path, "org/M", "mmproj-F16.gguf")
    assert str(only(found_in(tmp_path, "huggingface")).projector).endswith("/mmproj-F16.gguf")


def test_files_beside_a_model_are_no_models(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf")
    small_model(tmp_path / "lora.gguf", general__type="adapter")
    small_model(tmp_path / "m-imatrix.gguf")
    small_model(tmp_path / "mtp-m.gguf")
    vocabulary = {**MODEL, "tokenizer.ggml.tokens": ["a", "b"]}
    write_header(tmp_path / "ggml-vocab.gguf", vocabulary, {}, F16)
    found = found_in(tmp_path)
    assert (names(found), found.notes) == (["m"], ())


# --- what cannot be used -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "note"),
    [
        ("m.gguf.part", b"GGUF", "unfinished"),
        ("m.gguf.downloadInProgress", b"GGUF", "unfinished"),
        ("0f3a.incomplete", b"GGUF\3\0", "unfinished"),
        ("page.gguf", b"<!doctype html>", "no GGUF"),
        ("empty.gguf", b"", "not complete"),
        ("short.gguf", b"GGUF\3\0\0\0", "not complete"),
        ("old.gguf", struct.pack("<4sIQQ", b"GGUF", 1, 1, 1), "no GGUF of a known version"),
        ("many.gguf", struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 1 << 40), "no GGUF of a known"),
    ],
)
def test_a_file_that_is_no_model_is_left_out_with_a_note(
    name: str, data: bytes, note: str, tmp_path: Path
) -> None:
    small_model(tmp_path / "good.gguf")
    (tmp_path / name).write_bytes(data)
    found = found_in(tmp_path)
    assert names(found) == ["good"]
    assert len(found.notes) == 1
    assert name in found.notes[0]
    assert note in found.notes[0]


def test_files_of_other_kinds_are_not_mentioned(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("GGUF")
    (tmp_path / "x.incomplete").write_bytes(b"{}")
    os.mkfifo(tmp_path / "pipe.gguf")
    os.mkfifo(tmp_path / "pipe.incomplete")
    assert found_in(tmp_path)[:2] == ((), ())


def test_aria2_gives_a_file_its_name_before_it_is_complete(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf")
    (tmp_path / "m.gguf.aria2").write_bytes(b"")
    found = found_in(tmp_path)
    assert found.models == ()
    assert "unfinished" in found.notes[0]


@pytest.mark.parametrize("kind", [0, 3, 4, 8, 9, 99])
def test_a_hostile_header_ends_in_no_error(kind: int, tmp_path: Path) -> None:
    # A key whose value claims to be as long as 64 bits can say.
    text = struct.pack("<Q", 20) + b"general.architecture"
    keys = text + struct.pack("<IIQ", kind, 8, (1 << 64) - 1)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1 << 20, 1 << 20)
    (tmp_path / "evil.gguf").write_bytes(head + keys * 40)
    for model in found_in(tmp_path).models:
        assert model.path.endswith("evil.gguf")


def test_a_broken_link_and_a_loop_are_left_out(tmp_path: Path) -> None:
    small_model(tmp_path / "sub" / "m.gguf")
    (tmp_path / "gone.gguf").symlink_to("nowhere")
    (tmp_path / "self.gguf").symlink_to("self.gguf")
    (tmp_path / "sub" / "up").symlink_to("..")
    found = found_in(tmp_path)
    assert names(found) == ["m"]
    assert sorted(note.split()[0].rpartition("/")[2] for note in found.notes) == [
        "gone.gguf",
        "self.gguf",
    ]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf")
    (tmp_path / "closed").mkdir(mode=0)
    found = found_in(tmp_path)
    assert names(found) == ["m"]
    assert "closed cannot be read" in found.notes[0]


def test_a_folder_that_the_system_refuses_is_noted(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf")
    places = [ModelPlace("ollama", "/" + "x" * 300), ModelPlace("huggingface", "/" + "y" * 300)]
    found = find_models([*places, ModelPlace("folder", str(tmp_path))])
    assert names(found) == ["m"]
    assert {note[1] for note in found.notes} == {"x", "y"}
    assert {note.partition(" ")[2] for note in found.notes} == {
        "cannot be read: File name too long"
    }


def test_a_missing_folder_is_noted_only_if_the_user_named_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert find_models([ModelPlace("ollama", missing)]).notes == ()
    found = find_models([ModelPlace("folder", missing, named=True)])
    assert "is no folder" in found.notes[0]
    assert found.places == (ModelPlace("folder", missing, named=True),)


def test_many_notes_are_cut_short(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.gguf").write_bytes(b"no")
    notes = found_in(tmp_path).notes
    assert len(notes) == 21
    assert "30 more" in notes[-1]


# --- large trees, and nothing changed ------------------------------------------------------


def test_a_walk_ends_in_a_tree_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 40)
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").touch()
    notes: list[str] = []
    seen = list(walk(str(tmp_path), notes.append))
    assert len(seen) <= 40
    assert "has more than 40 files" in notes[0]
    deep = tmp_path / "deep"
    for _ in range(40):
        deep /= "d"
    deep.mkdir(parents=True)
    small_model(deep / "m.gguf")
    assert names(found_in(tmp_path / "deep")) == []


@pytest.mark.parametrize("layout", ["flat", "hub", "ollama", "split"])
def test_the_work_grows_with_the_number_of_files_and_no_faster(layout: str, tmp_path: Path) -> None:
    def cost(count: int) -> int:
        folder = tmp_path / str(count)
        source = {"hub": "huggingface", "ollama": "ollama"}.get(layout, "folder")
        if not folder.exists():
            folder.mkdir()
            for number in range(count):
                if layout == "hub":
                    hub_file(folder, f"o/m{number}", "m-Q4_0.gguf")
                elif layout == "ollama":
                    ollama_model(folder, f"m{number:03}:1b")
                else:
                    small_model(folder / f"model{number:03}-Q4_0.gguf")
            if layout == "split":
                split_model(folder, "big", count)
        return steps(lambda: found_in(folder, source))

    assert grows_linearly(cost, 8)


def state(folder: Path) -> Iterator[tuple[object, ...]]:
    """What anybody could tell of a tree, apart from when it was read."""
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        yield (
            str(path),
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
            data,
        )


def test_nothing_is_changed_and_a_closed_tree_is_enough(tmp_path: Path) -> None:
    hub_file(tmp_path / "hub", "org/M", "M-Q8_0.gguf")
    (tmp_path / "hub" / "models--org--M" / "blobs" / "x.incomplete").write_bytes(b"GGUF")
    ollama_model(tmp_path / "ollama", "m:1b")
    split_model(tmp_path / "own", "s", 2)
    folders = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.is_dir()]
    for path in [*folders, *(each for each in tmp_path.rglob("*") if each.is_file())]:
        path.chmod(path.stat().st_mode & 0o555)
    before = list(state(tmp_path))
    try:
        for source, name in (("huggingface", "hub"), ("ollama", "ollama"), ("folder", "own")):
            assert len(found_in(tmp_path / name, source).models) == 1
        assert list(state(tmp_path)) == before
    finally:
        for path in folders:
            path.chmod(0o755)
