"""``models``, and ``-m`` with a name: the table, the document, and each command that takes one."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import model_headers
from support.builds import stand_in
from support.model_headers import write_shape
from support.model_shelves import hub_file, ollama_model, small_model, small_projector
from support.program import Result, environment, run_on_terminal, run_program
from support.server_helps import recorded_help
from support.servers import install_stand_in
from support.stored import install

from tsuku_llm.launch.plan.build_arguments import help_lines
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

Run = Callable[..., Result]


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's home folder with models of four programs and two of their own."""
    folder = tmp_path / "user"
    hub = folder / ".cache" / "huggingface" / "hub"
    hub_file(hub, "ggml-org/gpt-oss-120b-long-name-GGUF", "gpt-oss-120b-long-name-Q4_K_M.gguf")
    lm_studio = folder / ".lmstudio" / "models" / "lms" / "gemma-GGUF"
    small_model(lm_studio / "gemma-Q8_0.gguf")
    small_projector(lm_studio / "mmproj-f16.gguf")
    ollama_model(folder / ".ollama" / "models", "qwen2.5:7b")
    ollama_model(folder / ".ollama" / "models", "qwen2.5:14b")
    small_model(folder / ".cache" / "llama.cpp" / "tiny.gguf")
    (folder / "own").mkdir()
    (folder / "own" / "m.gguf.part").write_bytes(b"GGUF")
    return folder


@pytest.fixture
def env(home: Path, user: Path) -> dict[str, str]:
    """The environment of that user."""
    kept = {"TSUKU_LLM_MODEL_PATH": str(user / "own"), "HOME": str(user), "XDG_CACHE_HOME": ""}
    others = dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"), "")
    return environment(home, **kept, **others)


@pytest.fixture
def run(env: dict[str, str], user: Path) -> Run:
    """Run the program as that user."""

    def start(*words: str, **extra: str) -> Result:
        changed = {**env, **extra}
        # A setting of ours must not be empty.
        if not changed["TSUKU_LLM_MODEL_PATH"]:
            del changed["TSUKU_LLM_MODEL_PATH"]
        return run_program(*words, env=changed, cwd=user)

    return start


def argv_of(run: Run, *words: str) -> list[str]:
    """The server's arguments in a dry run, without its program."""
    done = run("serve", "--dry-run", "--json", *words)
    assert done.code == 0, done.stdout
    argv: list[str] = done.document["data"]["argv"][1:]
    return argv


# --- the list ------------------------------------------------------------------------------


def test_the_table_has_at_most_80_columns(run: Run) -> None:
    done = run("models")
    assert done.code == 0
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["name", "size", "quant", "context", "from", "fits"]
    table = [line for line in rows if not line.startswith("note: ")]
    assert max(map(len, (head, *table))) <= 80
    assert table == [
        "ggml-org/gpt-oss-120b-long-name-GGUF:Q4_K_M",
        table[1],
        table[2],
        "  with the projector mmproj-f16.gguf",
        table[4],
        table[5],
        table[6],
        "serve one: tsuku-llm serve -m NAME",
    ]
    # A long name has a line for itself; the facts are in their columns.
    assert table[1][: head.index("size")].strip() == ""
    for line, name in zip(table[4:7], ("qwen2.5:14b", "qwen2.5:7b", "tiny"), strict=True):
        assert line.startswith(name + " ")
    assert {line[head.index("from") : head.index("fits")].strip() for line in table[4:7]} == {
        "Ollama",
        "llama.cpp",
    }
    assert all(line[head.index("fits") :] == "yes" for line in (table[1], *table[4:7]))
    assert "m.gguf.part is an unfinished download" in done.stdout


def test_the_document_has_every_fact(run: Run, user: Path) -> None:
    data = run("models", "--json").document["data"]
    assert [each["name"] for each in data["models"]] == [
        "ggml-org/gpt-oss-120b-long-name-GGUF:Q4_K_M",
        "lms/gemma-GGUF:Q8_0",
        "qwen2.5:14b",
        "qwen2.5:7b",
        "tiny",
    ]
    gemma = data["models"][1]
    folder = user / ".lmstudio" / "models" / "lms" / "gemma-GGUF"
    fit = gemma.pop("fit")
    assert fit["size"] > 8192
    assert (fit["fits"], fit["shortened"], fit["layers"], fit["on_devices"]) == (True, None, 0, 0)
    assert gemma == {
        "name": "lms/gemma-GGUF:Q8_0",
        "source": "lm-studio",
        "path": str(folder / "gemma-Q8_0.gguf"),
        "files": [str(folder / "gemma-Q8_0.gguf")],
        "projector": str(folder / "mmproj-f16.gguf"),
        "model_repository": "lms/gemma-GGUF",
        "size": (folder / "gemma-Q8_0.gguf").stat().st_size,
        "quantisation": "Q8_0",
        "architecture": "llama",
        "context": 4096,
        "problem": None,
    }
    own = {"source": "folder", "folder": str(user / "own"), "exists": True}
    assert data["places"][0] == own
    assert len(data["notes"]) == 1


def test_the_judgement_is_that_of_explain(run: Run, home: Path) -> None:
    install_stand_in(home / "llm", backend="cpu")
    listed = {each["name"]: each for each in run("models", "--json").document["data"]["models"]}
    told = run("explain", "--json", "-m", "tiny").document["data"]["model"]
    # What is free of main memory changes from one moment to the next.
    assert {**listed["tiny"]["fit"], "host": None} == {**told, "host": None}


def test_without_models_the_folders_and_the_ways_to_one_are_told(
    home: Path, tmp_path: Path
) -> None:
    env = environment(home, HOME=str(tmp_path), XDG_CACHE_HOME="", HF_HOME="", HF_HUB_CACHE="")
    done = run_program("models", env=env)
    assert done.code == 0
    assert done.stdout.startswith("no model was found in:\n")
    assert f"  {tmp_path}/.ollama/models\n" in done.stdout
    assert "tsuku-llm serve -- -hf OWNER/REPOSITORY" in done.stdout
    assert run_program("models", "--json", env=env).document["data"]["models"] == []


def test_control_characters_in_a_name_do_not_reach_the_terminal(run: Run, user: Path) -> None:
    small_model(user / "own" / "evil\x1b[31m\nx.gguf")
    done = run("models")
    assert "\x1b" not in done.stdout
    assert done.code == 0


# --- serve -m ------------------------------------------------------------------------------


@pytest.fixture
def build(home: Path) -> None:
    install_stand_in(home / "llm", backend="cpu", serve=("listen",))


@pytest.mark.usefixtures("build")
def test_a_name_stands_for_the_file(run: Run, user: Path) -> None:
    (blob,) = [word for word in argv_of(run, "-m", "qwen2.5:7b") if "sha256-" in word]
    assert Path(blob).is_file()
    path = str(user / ".cache" / "llama.cpp" / "tiny.gguf")
    for words in (("-m", "tiny"), ("-mtiny",), ("--model=tiny",), ("--model", "TINY")):
        assert argv_of(run, *words, "--", "-c", "64") == ["-m", path, "-c", "64"]


@pytest.mark.usefixtures("build")
def test_a_name_brings_its_projector_and_a_path_does_not(run: Run, user: Path) -> None:
    folder = user / ".lmstudio" / "models" / "lms" / "gemma-GGUF"
    model, projector = str(folder / "gemma-Q8_0.gguf"), str(folder / "mmproj-f16.gguf")
    assert argv_of(run, "-m", "gemma") == ["-m", model, "--mmproj", projector]
    assert argv_of(run, "-m", model) == ["-m", model]
    assert argv_of(run, "-m", "gemma", "--", "--no-mmproj") == ["-m", model, "--no-mmproj"]
    own = ["-m", model, "--mmproj", "/other.gguf"]
    assert argv_of(run, "-m", "gemma", "--", "--mmproj", "/other.gguf") == own


@pytest.mark.usefixtures("build")
def test_a_file_comes_before_a_name(run: Run, user: Path) -> None:
    other = small_model(user / "tiny")
    assert argv_of(run, "-m", "tiny") == ["-m", str(other)]
    assert argv_of(run, "-m", "~/tiny") == ["-m", str(other)]
    # A folder is no file.
    (user / "qwen2.5:7b").mkdir()
    assert "sha256-" in argv_of(run, "-m", "qwen2.5:7b")[1]


@pytest.mark.usefixtures("build")
def test_any_part_stands_for_a_split_model(run: Run, user: Path) -> None:
    for number in (1, 2):
        small_model(user / f"s-0000{number}-of-00002.gguf", split__no=number - 1, split__count=2)
    assert argv_of(run, "-m", "s-00002-of-00002.gguf") == [
        "-m",
        str(user / "s-00001-of-00002.gguf"),
    ]


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize(
    ("name", "code", "slug", "words"),
    [
        ("qwen", 2, "unknown-model", "2 models may be meant"),
        ("qwen2.5:8b", 2, "unknown-model", "did you mean qwen2.5:7b?"),
        ("mistral", 2, "unknown-model", "qwen2.5:14b"),
        ("", 2, "bad-usage", "--model must not be empty"),
        ("none.gguf", 7, "bad-model", "No such file"),
        ("tinny.gguf", 7, "bad-model", "did you mean tiny.gguf?"),
        ("/", 7, "bad-model", "it is a folder"),
        ("https://example.org/m.gguf", 2, "bad-usage", "--model-url"),
        ("https://hf.co/u/r/resolve/main/m.gguf", 2, "bad-usage", "-- --model-url https://hf.co/"),
        # A browser shows a page at /blob/, and the server would take it for the file.
        ("https://hf.co/u/r/blob/main/m.gguf", 2, "bad-usage", "serve -- -hf u/r -hff m.gguf"),
        ("https://huggingface.co/u/r", 2, "bad-usage", "serve -- -hf u/r"),
        ("https://huggingface.co/u/r/tree/main", 2, "bad-usage", "serve -- -hf u/r"),
        # The prefixes of docs/ramalama-serve.1.md in containers/ramalama.
        ("hf://u/r:Q8_0", 2, "bad-usage", "serve -- -hf u/r:Q8_0"),
        ("huggingface://u/r/m.gguf", 2, "bad-usage", "serve -- -hf u/r -hff m.gguf"),
        ("hf.co/u/r:Q8_0", 2, "unknown-model", "serve -- -hf u/r:Q8_0"),
        ("unsloth/Qwen3-4B-GGUF", 2, "unknown-model", "serve -- -hf unsloth/Qwen3-4B-GGUF"),
        ("ms://u/r", 2, "bad-usage", "download a GGUF file with another program, then"),
        ("oci://quay.io/u/r:latest", 2, "bad-usage", "download a GGUF file with another"),
        ("ollama://mistral", 2, "unknown-model", "no model on this machine is called 'mistral'"),
    ],
)
def test_a_model_that_is_not_here_is_refused_with_the_names(
    name: str, code: int, slug: str, words: str, run: Run
) -> None:
    done = run("serve", "-m", name)
    assert done.code == code
    assert f"error[{slug}]: " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("twice", ["-m", "--model", "-hf", "--model-url"])
def test_a_model_on_both_sides_is_refused(twice: str, run: Run) -> None:
    for command in (("serve",), ("serve", "--detach"), ("service", "systemd"), ("explain",)):
        done = run(*command, "-m", "tiny", "--", twice, "other")
        assert done.code == 2
        assert "a model is named twice" in done.stderr


@pytest.mark.usefixtures("build")
def test_a_server_in_the_background_serves_the_named_model(run: Run, user: Path) -> None:
    try:
        done = run("serve", "--detach", "--json", "-m", "tiny", "--", "--port", "0")
        assert done.code == 0, done.stderr
        pid = done.document["data"]["pid"]
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert str(user / ".cache" / "llama.cpp" / "tiny.gguf") in words
        assert "tiny" not in words
    finally:
        run("stop")


@pytest.mark.usefixtures("build")
def test_a_unit_has_the_file_and_not_the_name(run: Run, user: Path) -> None:
    done = run("service", "systemd", "--json", "-m", "tiny", "--", "--port", "0")
    unit = done.document["data"]["unit"]
    assert str(user / ".cache" / "llama.cpp" / "tiny.gguf") in unit
    assert " -m tiny" not in unit


# --- a start without a model ----------------------------------------------------------------


def install_router(
    home: Path, *serve: str, reads_config: bool = False, cards: Sequence[str] = ()
) -> None:
    """Install a build that knows presets; ``cards`` are the devices that it lists."""
    backend = "vulkan" if cards else "cpu"
    listed = ("out Available devices:", *(f"out   {card}" for card in cards))
    steps = {"devices": listed} if cards else {}
    build = stand_in(home / "router", backend=backend, serve=serve, **steps)
    files = {path.name: path.read_bytes() for path in build.tree.iterdir()}
    changes = {"takes": help_lines(recorded_help("b10434")), "reads_config": reads_config}
    store = Store(home / "llm")
    install(store, "b100", backend, files, {}, backend=backend, device=None, **changes)


@pytest.fixture
def router(home: Path) -> None:
    install_router(home, "listen")


@pytest.mark.usefixtures("router")
def test_a_start_without_a_model_offers_all(run: Run, user: Path, home: Path) -> None:
    done = run("serve", "--dry-run", "--json", "--", "--port", "0")
    assert done.code == 0, done.stdout
    preset = done.document["data"]["preset"]
    file = home / "llm" / "state" / "servers" / "default.ini"
    assert preset["path"] == str(file)
    assert not file.exists()
    assert [each["alias"] or each["name"] for each in preset["models"]] == [
        each["name"] for each in run("models", "--json").document["data"]["models"]
    ]
    shown = run("serve", "--dry-run", "--", "--port", "0")
    assert "serving 5 models of this machine" in shown.stderr
    assert f"offers tiny: {user / '.cache' / 'llama.cpp' / 'tiny.gguf'}" in shown.stdout
    try:
        data = run("serve", "--detach", "--json", "--", "--port", "0").document["data"]
        words = Path(f"/proc/{data['pid']}/cmdline").read_text().split("\0")
        assert words[1:5] == ["--models-preset", str(file), "--port", "0"]
        folder = user / ".lmstudio" / "models" / "lms" / "gemma-GGUF"
        assert (
            f"[lms/gemma-GGUF:Q8_0]\nmodel = {folder / 'gemma-Q8_0.gguf'}\n"
            f"mmproj = {folder / 'mmproj-f16.gguf'}\noffline = true\n"
        ) in file.read_text()
    finally:
        run("stop")
    assert not file.exists()


def test_no_more_models_are_loaded_than_fit_together(run: Run, user: Path, home: Path) -> None:
    """Upstream's router counts models, and not their memory."""
    install_router(home, "listen", cards=["Vulkan0: a card (4096 MiB, 2200 MiB free)"])
    shape = model_headers.llama(layers=4, width=1024, inner=2048, heads=16)
    for name in ("one", "two", "three"):  # 0.5 GB of the card each, of 1.2, with 8192 tokens
        write_shape(user / "own" / f"{name}.gguf", shape, vocabulary=9)
    start = ("serve", "--dry-run", "--json", "--")
    done = run(*start, "-c", "8192").document["data"]
    assert done["argv"][1:3] == ["--models-max", "2"]
    assert done["argv"][-2:] == ["-c", "8192"]
    assert done["preset"]["limit"] == 2
    told = run("serve", "--dry-run", "--", "-c", "8192").stderr
    assert "at most 2 at a time: more may not fit into memory together" in told
    # In explain as well, which starts nothing.
    found = run("explain", "--json", "--", "-c", "8192").document["data"]["preset"]
    assert found == done["preset"]
    assert "at most 2 at a time" in run("explain", "--", "-c", "8192").stdout
    # Without a context the first one takes the whole card.
    assert run(*start[:3]).document["data"]["preset"]["limit"] == 1
    # The user's own number counts.
    for words, extra in ((("--models-max", "3"), {}), ((), {"LLAMA_ARG_MODELS_MAX": "3"})):
        done = run(*start, "-c", "8192", *words, **extra).document["data"]
        assert done["preset"]["limit"] is None
        assert done["argv"].count("--models-max") == len(words) / 2


def test_each_model_gets_the_card_that_a_start_would_choose(
    run: Run, user: Path, home: Path
) -> None:
    """If all of them have room at once; the router divides each among all cards otherwise.

    What a router is told counts before a model's section (``load_models`` in upstream's
    tools/server/server-models.cpp, b11434), so it is told no device then.
    """
    free = "(4096 MiB, 3000 MiB free)"
    install_router(home, "listen", cards=[f"Vulkan{number}: a card {free}" for number in (0, 1)])
    shape = model_headers.llama(layers=4, width=1024, inner=2048, heads=16)
    for name in ("one", "two", "three"):
        write_shape(user / "own" / f"{name}.gguf", shape, vocabulary=9)
    start = ("serve", "--dry-run", "--json", "--")
    done = run(*start, "-c", "8192").document["data"]
    models = {each["name"]: each["device"] for each in done["preset"]["models"]}
    assert sorted(models[name] for name in ("one", "two", "three")) == [
        "Vulkan0", "Vulkan0", "Vulkan1",
    ]  # fmt: skip
    assert "--device" not in done["argv"]
    assert done["preset"]["limit"] is None
    shown = run("serve", "--dry-run", "--", "-c", "8192")
    assert "placed: each model on one device" in shown.stderr
    assert f"offers one: {user / 'own' / 'one.gguf'}, on {models['one']}" in shown.stdout
    assert run("explain", "--json", "--", "-c", "8192").document["data"]["preset"] == done["preset"]
    # Without a context a model takes what is there, and not all of them have room.
    done = run(*start[:3]).document["data"]
    assert {each["device"] for each in done["preset"]["models"]} == {None}
    assert done["argv"].count("--device") == 1
    # What the user chose counts.
    for words, extra in ((("--device", "Vulkan1"), {}), ((), {"GGML_VK_VISIBLE_DEVICES": "0,1"})):
        done = run(*start, "-c", "8192", *words, **extra).document["data"]
        assert {each["device"] for each in done["preset"]["models"]} == {None}
    off = run(*start, "-c", "8192", TSUKU_LLM_PLACEMENT="off").document["data"]
    assert {each["device"] for each in off["preset"]["models"]} == {None}


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize(
    ("words", "extra", "told"),
    [
        (("--", "--api-key", "hush-hush"), {}, True),
        ((), {"LLAMA_API_KEY": "hush-hush"}, True),
        (("--", "--api-key-file", "keys"), {}, False),
        (("-m", "tiny", "--", "--api-key", "hush-hush"), {}, False),
    ],
)
def test_a_router_is_better_told_its_key_in_a_file(
    words: tuple[str, ...], extra: dict[str, str], told: bool, run: Run
) -> None:
    """A real b11434 went on with a stream that a client had stopped: its server wanted the key."""
    done = run("serve", "--dry-run", *words, **extra)
    assert done.code == 0, done.stderr
    assert ("--api-key-file FILE" in done.stderr) is told


def test_explain_shows_what_a_start_would_offer(run: Run, home: Path) -> None:
    install_router(home, "listen")
    preset = run("explain", "--json").document["data"]["preset"]
    assert preset == run("serve", "--dry-run", "--json").document["data"]["preset"]
    assert "serve would offer these models" in run("explain").stdout
    for words in (("-m", "tiny"), ("--", "--models-dir", "/x")):
        assert run("explain", "--json", *words).document["data"]["preset"] is None


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("-m", "/x"), {}),
        (("--models-dir", "/x"), {}),
        (("--models-preset", "/x"), {}),
        (("--version",), {}),
        ((), {"LLAMA_ARG_MODEL": "/x"}),
        ((), {"LLAMA_ARG_MODELS_PRESET": "/x"}),
    ],
)
def test_a_start_that_names_its_models_gets_no_preset(
    run: Run, words: tuple[str, ...], extra: dict[str, str]
) -> None:
    done = run("serve", "--dry-run", "--json", "--", *words, **extra)
    assert done.document["data"]["preset"] is None
    assert done.document["data"]["argv"][1:] == list(words)
    assert "no model is named" not in done.stderr


def test_upstreams_own_file_may_name_the_models(run: Run, user: Path, home: Path) -> None:
    """A router that reads the name of its preset in ``config.ini`` keeps it (llama.cpp#26118)."""
    install_router(home, "listen", reads_config=True)
    own = user / ".config" / "llama.cpp" / "config.ini"
    own.parent.mkdir(parents=True)
    own.write_text("models-preset = /x.ini\n")
    done = run("serve", "--dry-run", "--json", XDG_CONFIG_HOME=str(user / ".config"))
    assert done.document["data"]["argv"][1:] == []


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_preset_of_the_users_is_shown_and_judged(way: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "my.ini"
    file.write_text("[*]\nngl = 7\n[big]\nmodel = /absent.gguf\nctx-size = abc\nfrob = 1\n")
    words = ("--", "--models-preset", str(file)) if way == "argument" else ()
    extra = {"LLAMA_ARG_MODELS_PRESET": str(file)} if way == "variable" else {}
    wrong = {
        "model": "model: there is no file /absent.gguf",
        "ctx-size": "ctx-size wants a number",
        "frob": "it has no frob",
    }
    done = run("serve", "--dry-run", *words, **extra)
    assert done.code == 0, done.stderr
    assert f"{file} [*] has ngl = 7\n" in done.stderr
    assert f"{file} [big] has ctx-size = abc\n" in done.stderr
    for problem in wrong.values():
        assert f"warning: {file} [big]: {problem}\n" in done.stderr
    found = run("explain", "--json", *words, **extra).document["data"]["arguments"]
    told = {each["word"]: each for each in found if each["source"]}
    assert told["ngl"]["source"] == f"{file} [*]"
    assert told["ngl"]["problem"] is None
    assert {word: told[word]["problem"] for word in wrong} == wrong
    assert f"from {file} [big]: ctx-size wants a number" in run("explain", *words, **extra).stdout


@pytest.mark.usefixtures("build")
def test_a_build_without_presets_says_so(run: Run) -> None:
    done = run("serve", "--dry-run", "--json")
    assert done.document["data"]["preset"] is None
    assert done.document["data"]["argv"][1:] == []
    assert "is not known to have --models-preset" in done.stderr


def test_a_folder_that_cannot_be_written_costs_only_the_models(run: Run, home: Path) -> None:
    install_router(home, "dump")
    folder = home / "llm" / "state" / "servers"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"no folder")
    done = run("serve", "--exec", "--", "--port", "0")
    assert done.code == 0, done.stderr
    assert "the server offers the models of its own cache only" in done.stderr
    assert "arg 0\n" in done.stdout
    assert "arg --models-preset\n" not in done.stdout


def test_a_key_in_upstreams_own_file_is_known_to_launch(run: Run, user: Path, home: Path) -> None:
    """The process of a server has no word of it: the files that it has read have."""
    install_router(home, "listen", reads_config=True)
    own = user / ".config" / "llama.cpp" / "config.ini"
    own.parent.mkdir(parents=True)
    own.write_text("api-key = hush-hush\n")
    config = {"XDG_CONFIG_HOME": str(user / ".config")}
    try:
        assert run("serve", "--detach", "-m", "tiny", "--", "--port", "0", **config).code == 0
        told = run("launch", "claude", **config).stdout
        assert "THE-KEY-OF-YOUR-SERVER" in told
        assert "hush" not in told
    finally:
        run("stop")


@pytest.mark.usefixtures("router")
def test_without_any_model_a_start_tells_how_to_get_one(env: dict[str, str], user: Path) -> None:
    del env["TSUKU_LLM_MODEL_PATH"]
    env["HOME"] = str(user / "nobody")
    code, text = run_on_terminal(b"", "serve", "--dry-run", env=env)
    assert code == 0, text
    assert "-hf OWNER/REPOSITORY" in " ".join(text.split())
    assert "--models-preset" not in text


# --- the other commands, and the setting ---------------------------------------------------


@pytest.mark.usefixtures("build")
def test_explain_and_bench_take_names(run: Run) -> None:
    told = run("explain", "-m", "gemma", "--json").document["data"]["model"]
    assert told["size"] > 8192
    for command in ("explain", "bench"):
        done = run(command, "-m", "qwen")
        assert (done.code, "2 models may be meant" in done.stderr) == (2, True)


def test_the_setting_is_a_list_as_in_path(run: Run, user: Path) -> None:
    small_model(user / "a" / "in-a.gguf")
    small_model(user / "b" / "in-b.gguf")
    own = {"TSUKU_LLM_MODEL_PATH": ""}
    assert run("config", "set", "llm.model_path", f"~/a:{user}/b", **own).code == 0
    assert run("config", "get", "llm.model_path", **own).stdout.strip() == f"~/a:{user}/b"
    names = [each["name"] for each in run("models", "--json", **own).document["data"]["models"]]
    assert {"in-a", "in-b"} <= set(names)
    done = run("config", "set", "llm.model_path", "models:other", **own)
    assert (done.code, "must be absolute" in done.stderr) == (2, True)


def test_a_file_may_have_the_folders_as_a_list(run: Run, user: Path, home: Path) -> None:
    small_model(user / "a" / "in-a.gguf")
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f"[llm]\nmodel_path = {json.dumps([str(user / 'a')])}\n")
    data: Any = run("models", "--json", TSUKU_LLM_MODEL_PATH="").document["data"]
    assert "in-a" in [each["name"] for each in data["models"]]
