"""The preset of a router: every model under its name, in the format of upstream's presets.

What upstream makes of a section's name was seen with b10434, whose router had these models: of
``qwen2.5:7b`` it made ``qwen2.5:7B``, and of ``model é: x`` ``model é: X`` (``canonical_tag`` and
``parse_ini_from_file`` in common/preset.cpp of b11434).
"""

import re
from pathlib import Path

import pytest
from support.server_helps import recorded_help

from tsuku_llm.launch.plan.build_arguments import help_lines
from tsuku_llm.model_caches.naming import LocalModel
from tsuku_llm.steps.serve.all_models import RouterPreset, preset_of

TAKES = help_lines(recorded_help("b10434"))
FILE = Path("/state/servers/default.ini")


def model(name: str, path: str = "/m/a.gguf", projector: str | None = None) -> LocalModel:
    return LocalModel(name, "folder", path, (path,), 1, None, "a.gguf", projector=projector)


def made(*models: LocalModel) -> RouterPreset:
    preset = preset_of(models, FILE, TAKES)
    assert preset
    return preset


def as_upstream(name: str) -> str:
    """The id that upstream makes of a section's name."""
    before, colon, tag = name.rpartition(":")
    found = re.search("[-.]([A-Z0-9_]+)$", tag, re.IGNORECASE)
    return f"{before}:{(found[1] if found else tag).upper()}" if colon else name


def test_each_model_has_a_section_with_its_files() -> None:
    preset = made(model("tiny"), model("o/r-GGUF:Q8_0", "/m/b c-00001-of-00002.gguf", "/m/p.gguf"))
    assert preset.text == (
        "[tiny]\nmodel = /m/a.gguf\noffline = true\n\n"
        "[o/r-GGUF:Q8_0]\nmodel = /m/b c-00001-of-00002.gguf\nmmproj = /m/p.gguf\noffline = true\n"
    )
    assert preset.left_out == ()


@pytest.mark.parametrize(
    "name",
    ["qwen2.5:7b", "llama3:8b-text-q4_0", "llama3:8b-q4_0", "o/r:UD-Q8_0", "hf.co/o/r:q8", "a:b:c"],
)
def test_a_name_that_upstream_changes_is_an_alias(name: str) -> None:
    """Two such names could become one: ``llama3:8b-text-q4_0`` and ``llama3:8b-q4_0``."""
    (routed,) = made(model(name)).models
    assert routed.alias == name
    assert routed.name == name.replace(":", "@") == as_upstream(routed.name)
    assert f"[{routed.name}]\nmodel = /m/a.gguf\nalias = {name}\n" in made(model(name)).text


@pytest.mark.parametrize("name", ["tiny", "a.b-c", "o/r:Q4_K_M", "o/r:F16", "é ü", "c;d"])
def test_a_name_that_upstream_keeps_has_no_other(name: str) -> None:
    (routed,) = made(model(name)).models
    assert (routed.name, routed.alias) == (name, None)
    assert as_upstream(name) == name


@pytest.mark.parametrize("name", ["*", "default", "a]b", "a\nb", " a", "a\t"])
def test_a_name_that_no_section_can_have_is_left_out_and_told(name: str) -> None:
    preset = made(model("tiny"), model(name))
    assert [each.name for each in preset.models] == ["tiny"]
    assert preset.left_out == (name,)
    assert name in preset.told


@pytest.mark.parametrize("path", ["/m/a;b.gguf", "/m/#1.gguf", "/m/a\nb.gguf", "/m/a.gguf "])
def test_a_path_that_no_value_can_be_is_left_out(path: str) -> None:
    assert made(model("tiny", path)).models == ()
    assert made(model("tiny", projector=path)).models == ()


def test_a_build_without_presets_gets_none() -> None:
    assert preset_of((model("tiny"),), FILE, ()) is None
    older = tuple(line for line in TAKES if "--models-preset" not in line)
    assert preset_of((model("tiny"),), FILE, older) is None


def test_a_build_that_cannot_be_offline_is_not_told_to() -> None:
    older = tuple(line for line in TAKES if "--offline" not in line)
    preset = preset_of((model("tiny"),), FILE, older)
    assert preset
    assert preset.text == "[tiny]\nmodel = /m/a.gguf\n"


@pytest.mark.parametrize(
    ("count", "limit", "words"),
    [
        (None, None, "is not known: the server's own limit counts"),
        (1, 1, "at most 1 at a time"),
        (5, 4, "any 4 of them fit"),
        (6, None, "all of them fit"),
    ],
)
def test_the_limit_is_what_fits_and_never_more_than_upstreams(
    count: int | None, limit: int | None, words: str
) -> None:
    preset = made(*(model(f"m{number}") for number in range(6))).limited(count)
    assert preset.limit == limit
    assert words in preset.memory
