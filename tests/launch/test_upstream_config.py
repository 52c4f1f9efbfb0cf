"""Upstream's ``config.ini`` and presets: files, format, and what comes before them.

The rules are those of llama.cpp#26118, of ``common_params_apply_system_config`` in common/arg.cpp
and of ``parse_ini_from_file`` in common/preset.cpp (b11434).
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server_helps import recorded_help

from tsuku_llm.launch.failed.diagnosis import after_config, diagnose
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.plan import upstream_config
from tsuku_llm.launch.plan.addresses import address_of, expected_addresses, wants_page
from tsuku_llm.launch.plan.build_arguments import Understood, help_lines
from tsuku_llm.launch.plan.planning import Build, LaunchPlan, plan_server
from tsuku_llm.launch.plan.upstream_config import (
    configured,
    parse_config,
    preset_in,
    reads_config,
)
from tsuku_llm.launch.plan.wishes import wishes_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its folders are others")

LINES = help_lines(recorded_help("b10434"))


def planned(folder: Path, text: str, *argv: str, reads: bool = True, **env: str) -> LaunchPlan:
    """The plan of a start by a user with this file."""
    path = folder / "config" / "llama.cpp" / "config.ini"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    build = Build(folder / "tree", "llama-server", "cpu", (), "", LINES, reads)
    environ = {"XDG_CONFIG_HOME": str(folder / "config"), **env}
    return plan_server(build, argv, cwd=folder, environ=environ, runs_in=folder / "runs")


def test_a_port_and_a_host_open_to_others_are_told(tmp_path: Path) -> None:
    text = "port = 8123\n[*]\nhost = 0.0.0.0 ; everywhere\napi-prefix=/llm\nno-ui = true\n"
    plan = planned(tmp_path, text, "-m", "x")
    assert address_of(plan.argv, plan.env)[1:3] == (8123, "/llm")
    assert not wants_page(plan.argv, plan.env)
    told = dict(expected_addresses(plan.argv, plan.env))
    assert "other machines" in told["open to"]
    assert {each.source for each in plan.configured} == {
        tmp_path / "config" / "llama.cpp" / "config.ini"
    }
    # The server reads the file itself: a list that it appends to would get each value twice.
    assert not [name for name in plan.own_env if name.startswith("LLAMA_")]


def test_variables_and_arguments_come_before_the_file(tmp_path: Path) -> None:
    text = "port = 1\nctx-size = 2\nkv-offload = 0\nn-gpu-layers = 7\n"
    plan = planned(
        tmp_path, text, "--port", "11", LLAMA_ARG_PORT="5", LLAMA_ARG_CTX_SIZE="22", HOME="/none"
    )
    options = memory_options(plan.argv, plan.env)
    assert address_of(plan.argv, plan.env).port == 11
    assert (options.context, options.cache_in_host) == (22, True)
    assert wishes_in(plan.argv, plan.env).layers == 7
    assert [each.key for each in plan.configured] == ["kv-offload", "n-gpu-layers"]
    assert plan.own_env["LLAMA_ARG_CTX_SIZE"] == "22"
    # The older variable for "no" comes first, too, whatever its value is.
    plan = planned(tmp_path, "kv-offload = 1\n", LLAMA_ARG_NO_KV_OFFLOAD="")
    assert memory_options(plan.argv, plan.env).cache_in_host


def test_a_build_from_before_does_not_read_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, "port = 8123\n", reads=False)
    assert (address_of(plan.argv, plan.env).port, plan.configured) == (8080, ())


def test_a_relative_path_is_read_where_the_server_runs(tmp_path: Path) -> None:
    plan = planned(tmp_path, "model = x.gguf\n")
    assert wishes_in(plan.argv, plan.env).model == str(tmp_path / "runs" / "x.gguf")


def test_the_users_file_comes_after_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, home = tmp_path / "etc", tmp_path / "home"
    monkeypatch.setattr(upstream_config, "_SYSTEM", etc)
    files = (
        etc / "llama.cpp" / "config.ini",
        home / ".config" / "llama.cpp" / "config.ini",
    )
    for path, text in zip(files, ("port = 1\nthreads = 2\n", "[*]\nport = 3\n"), strict=True):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    expected = {"port": ("3", files[1]), "threads": ("2", files[0])}
    # An empty variable is none, as in ``common_get_path_from_env``.
    for environ in ({"HOME": str(home)}, {"HOME": str(home), "XDG_CONFIG_HOME": ""}):
        found = configured(environ, LINES)
        assert {each.key: (each.value, each.source) for each in found.values()} == expected
    # A folder in place of a file says nothing.
    files[1].unlink()
    files[1].mkdir()
    assert [each.key for each in configured({"HOME": str(home)}, LINES).values()] == [
        "port",
        "threads",
    ]


VALUES = {
    "negated": ("no-kv-offload = true", {"LLAMA_ARG_KV_OFFLOAD": "0"}),
    "not-negated": ("no-kv-offload = false", {"LLAMA_ARG_KV_OFFLOAD": "1"}),
    "short-negation": ("nkvo = 1", {"LLAMA_ARG_KV_OFFLOAD": "0"}),
    "no-truth": ("kv-offload = yes", {"LLAMA_ARG_KV_OFFLOAD": "0"}),
    # Upstream calls the handler of such a flag whatever the value is.
    "flag-without-a-negation": ("metrics = false", {"LLAMA_ARG_ENDPOINT_METRICS": "1"}),
    "short-name": ("c = 5", {"LLAMA_ARG_CTX_SIZE": "5"}),
    "variable": ("LLAMA_ARG_CTX_SIZE = 5", {"LLAMA_ARG_CTX_SIZE": "5"}),
    "unknown": ("frob = 5\nversion = 1", {}),
    "without-a-variable": ("control-vector = x", {}),
}


@pytest.mark.parametrize(("text", "expected"), VALUES.values(), ids=VALUES)
def test_a_value_is_said_as_its_variable_says_it(
    text: str, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "config.ini").write_text(text)
    found = configured({"XDG_CONFIG_HOME": str(tmp_path)}, LINES)
    assert {name: each.value for name, each in found.items()} == expected


FORMAT = {
    "sections": (
        "a=1\n[*]\na=2\nb=2\n[default]\nc=3\n[model:Q4]\na=9\n",
        # A section that comes again starts again empty, and what stood before it was in "default".
        (("a", "2"), ("b", "2"), ("c", "3")),
    ),
    "comments": ("# a=1\n  ; b=2\na = 1 # c\nb = x;y\n", (("a", "1"), ("b", "x"))),
    "line-ends": ("a=1\r\nb=2\rc=3", (("a", "1"), ("b", "2"), ("c", "3"))),
    "spaces-within": ("a = b  c \t\n", (("a", "b  c"),)),
    "empty-value": ("a =\n", (("a", ""),)),
    "last-of-two": ("a=1\na=2\n", (("a", "2"),)),
    "a-key-that-is-indented": ("a=1\n b=2\n", ()),
    "no-key": ("a=1\nfrob\n", ()),
}


@pytest.mark.parametrize(("text", "expected"), FORMAT.values(), ids=FORMAT)
def test_the_format_is_upstreams(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert parse_config(text) == expected


@given(st.text(st.sampled_from("ab=[]*; #\n\r\t.-_default"), max_size=60) | st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    for key, value in parse_config(text):
        assert key
        assert value == value.strip(" \t")


# --- the preset of a router, as ``load_from_ini`` in common/preset.cpp of b11434 reads it ---


def preset(folder: Path, text: str, *given: str) -> dict[tuple[str, str], Understood]:
    """What a user's preset says, by section and key."""
    path = folder / "presets.ini"
    path.write_text(text)
    found = preset_in(path, LINES, given, folder)
    return {((each.source or "").rpartition("[")[2][:-1], each.word): each for each in found}


def test_a_preset_is_told_with_the_section_of_each_value(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    text = (
        "version = 1\n[*]\nngl = 10 ; of all\n[qwen2.5:7b]\nmodel = a.gguf\nc = 4096\ndev = CUDA1\n"
        "load-on-startup = true\nLLAMA_ARG_API_KEY_FILE = k\napi-key = hush\n"
    )
    found = preset(tmp_path, text)
    assert [each.problem for each in found.values()] == [None] * len(found)
    assert found["*", "ngl"].values == ("10",)
    size = found["qwen2.5:7b", "c"]
    assert (size.values, size.names, size.variable) == (
        ("4096",),
        ("--ctx-size",),
        "LLAMA_ARG_CTX_SIZE",
    )
    assert size.source == f"{tmp_path / 'presets.ini'} [qwen2.5:7b]"
    assert found["qwen2.5:7b", "dev"].values == ("CUDA1",)
    assert "hush" not in str(found)


def test_the_routers_own_arguments_come_before_its_preset(tmp_path: Path) -> None:
    """``server_models::load_models`` merges them over every model (server-models.cpp)."""
    found = preset(tmp_path, "[a]\nc = 1\nngl = 2\n", "--models-preset", "x", "--ctx_size", "9")
    assert [*found] == [("a", "ngl")]


WRONG = {
    # The router ends: "option 'frob' not recognized in preset 'a'".
    "unknown": ("ctx-sise = 1", "it has no ctx-sise: did you mean --ctx-size?"),
    "removed": ("draft-max = 3", "it has no draft-max any more: use"),
    "two-values": ("control-vector-layer-range = 1", "has two values, which no preset can have"),
    # The server of the model ends, when that is asked for.
    "number": ("ctx-size = abc", "ctx-size wants a number"),
    "no-number": ("c =", "c wants a number"),
    "model": ("model = absent.gguf", "model: there is no file absent.gguf"),
    "right-word": ("ngl = all", None),
    "no-whole-number": ("temp = .5", None),
    "number-and-more": ("c = 4096k", None),
    "text": ("chat-template = chatml", None),
}


@pytest.mark.parametrize(("line", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_of_a_preset_is_told(line: str, problem: str | None, tmp_path: Path) -> None:
    (found,) = preset(tmp_path, f"[a]\n{line}\n").values()
    assert found.problem == problem or (problem and problem in (found.problem or ""))


def test_a_preset_that_is_missing_or_broken_is_told(tmp_path: Path) -> None:
    (broken,) = preset(tmp_path, "[a]\nfrob\n").values()
    assert "it cannot be read" in str(broken.problem)
    (missing,) = preset_in(tmp_path / "absent.ini", LINES, (), tmp_path)
    assert missing.problem == "there is no such file"
    # What only the server can read is not judged, and neither is anything of an unknown build.
    os.mkfifo(tmp_path / "pipe")
    assert [*preset_in(tmp_path / "pipe", LINES, (), tmp_path)] == []
    assert [*preset_in(tmp_path / "absent.ini", (), (), tmp_path)] == []


def test_a_build_that_reads_such_files_is_known_by_its_library(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_bytes(b"\x7fELF")
    (tmp_path / "libggml-cuda.so").write_bytes(b"using config file: %s")
    assert not reads_config(server)
    (tmp_path / "libllama-common.so").write_bytes(b"\0using config file: %s\n\0")
    assert reads_config(server)
    assert not reads_config(tmp_path / "absent" / "llama-server")


def test_a_bad_value_is_told_with_its_file() -> None:
    # b10434 with "ctx-size = abc", and with a line that is no key.
    used = "0.00.133.406 I using config file: /home/u/.config/llama.cpp/config.ini\n"
    found = after_config(f"{used}stoi\n")
    assert found
    assert found.cause == "a value in /home/u/.config/llama.cpp/config.ini is wrong"
    assert "stoi" in found.facts[-1]
    broken = "failed to parse server config file: /home/u/.config/llama.cpp/config.ini\n"
    told = diagnose(1, used + broken)
    assert told
    assert (told.slug, told.fault) == ("config-file", "arguments")
    # A file of presets that cannot be read is another one.
    other = diagnose(1, f"{used}{broken.replace('config.ini', 'presets.ini')}")
    assert other
    assert "--models-preset" in other.fix
    # What follows has another cause.
    assert after_config(f"{used}srv    load_model: loading model\n") is None
    assert after_config("stoi\n") is None
    named = diagnose(1, f"{used}error: invalid argument: --frob\n")
    assert named
    assert named.slug == "unknown-argument"
