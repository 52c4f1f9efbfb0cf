"""Wrong settings: what still works, what stops, what ``config`` shows and refuses."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.program import Result, environment, run_program
from support.stored import install

from tsuku_llm.cli.entry import run
from tsuku_llm.config.keys import KEYS
from tsuku_llm.steps.session import FAKE_HARDWARE
from tsuku_llm.store.store import Store

Program = Callable[..., Result]
AsJson = Callable[..., Any]
SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "debian-12-vm-no-gpu.json"

ALWAYS = {
    "status": 0,
    "logs": 7,
    "stop": 7,
    "config list": 0,
    "config get llm.canary": 0,
    "config path": 0,
}
"""Commands that no wrong setting stops, with their exit codes in a home with one version."""

BROKEN = {
    "no TOML": (b"[llm]\ncanary = tru\n", "is not valid TOML", "line 2"),
    "cut off": (b'[llm]\nbackend = "cp', "is not valid TOML", "line 2, the end of the file"),
    "twice": (b"[llm]\n[llm]\n", "is not valid TOML", "line 2"),
    "latin-1": (b"[llm]\n# gr\xfc\xdfe\n", "cannot be read", "line 2 is not UTF-8"),
    "no table": (b"llm = 3\n", "llm is not a table", "it is int 3"),
    "type": (b"[llm]\nbackend = 3\n", "llm.backend must be a text in quotes", "line 2: 3"),
    "value": (
        b"[llm]\n\ncanary = 'mabe'\n",
        "llm.canary must be true, short or false",
        "line 3: 'mabe'",
    ),
    "word": (b"[llm]\nfallback = 'aks'\n", "off, ask or auto: did you mean ask?", "line 2: 'aks'"),
    "empty": (b"[llm]\nchannel = ' '\n", "llm.channel must not be empty", "line 2: ' '"),
}
"""Contents of a config file, what a message says of them, and where it is."""


@pytest.fixture
def home(tsuku_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one installed version, on a recorded machine without a GPU."""
    install(Store(tsuku_home / "llm"))
    monkeypatch.setenv(FAKE_HARDWARE, str(SNAPSHOT))
    return tsuku_home


def configure(home: Path, text: str | bytes) -> Path:
    file = home / "config.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


# --- what still works --------------------------------------------------------------------


@pytest.mark.parametrize("line", ALWAYS)
@pytest.mark.parametrize("kind", BROKEN)
def test_no_wrong_file_stops_a_command_that_does_not_need_it(
    line: str, kind: str, program: Program, home: Path
) -> None:
    data, what, where = BROKEN[kind]
    configure(home, data)
    done = program(*line.split())
    assert done.code == ALWAYS[line], done.stderr
    if line != "config path":
        (warning,) = (each for each in done.stderr.splitlines() if each.startswith("warning: "))
        assert what in warning
        assert where in warning
        assert str(home / "config.toml") in warning


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("line", ALWAYS)
def test_no_wrong_variable_stops_a_command_that_does_not_need_it(
    line: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSUKU_LLM_PROBE_TIMEOUT", "soon")
    monkeypatch.setenv("TSUKU_LLM_BACKEND", "cudda")
    done = program(*line.split())
    assert done.code == ALWAYS[line], done.stderr
    if line != "config path":
        assert "environment TSUKU_LLM_PROBE_TIMEOUT: 'soon'" in done.stderr


@pytest.mark.parametrize("what", ["folder", "unreadable", "fifo", "loop"])
def test_no_file_that_cannot_be_read_stops_a_look(what: str, program: Program, home: Path) -> None:
    file = home / "config.toml"
    if what == "folder":
        file.mkdir()
    elif what == "fifo":
        os.mkfifo(file)
    elif what == "loop":
        file.symlink_to(file)
    else:
        file.symlink_to("/proc/self/mem")
    for line, code in ALWAYS.items():
        done = program(*line.split())
        assert done.code == code, done.stderr
        assert "config.toml" in done.stderr + done.stdout
    refused = program("install", "--dry-run")
    assert refused.code in (2, 6), refused.stderr


def test_doctor_works_with_names_that_do_not_exist(program: Program, home: Path) -> None:
    right = program("doctor")
    configure(
        home, '[llm]\nbackend="cudda"\nchannel="stabel"\nrepository="mine"\nrelease="b1"\nhold=9\n'
    )
    done = program("doctor")
    assert (done.code, done.stdout) == (right.code, right.stdout)
    for name, line in (("cudda", 2), ("stabel", 3), ("mine", 4), ("b1", 5)):
        assert any(
            f"'{name}'" in each and f"config.toml, line {line}" in each
            for each in done.stderr.splitlines()
        ), done.stderr
    assert "did you mean stable?" in done.stderr


STOPPED = (
    "install --dry-run",
    "install --dry-run --release b11429",
    "explain",
    "backends",
    "serve --dry-run -- -m x",
    "run --dry-run llama-server",
    "list",
    "which",
    "verify",
    "rollback",
    "repository add x https://127.0.0.1:1/ --root none",
    "repository remove mine",
    "probe",
)


@pytest.mark.parametrize("line", STOPPED)
@pytest.mark.parametrize("key", ["backend", "mirror", "min_age", "idle_timeout"])
def test_any_wrong_setting_stops_any_other_command(
    line: str, key: str, program: Program, home: Path
) -> None:
    configure(home, f"[llm]\n{key} = '?'\n")
    done = program(*line.split())
    assert (done.code, done.stdout) == (2, ""), done
    assert f"error[bad-config]: llm.{key} must be" in done.stderr


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("explain --backend cpu", "backend"),
        ("serve --dry-run --idle-timeout 5 -- -m x", "idle_timeout"),
    ],
)
def test_a_flag_takes_the_place_of_a_wrong_value(
    line: str, key: str, program: Program, home: Path
) -> None:
    right = program(*line.split())
    configure(home, f"[llm]\n{key} = '?'\n")
    done = program(*line.split())
    assert (done.code, done.stdout) == (right.code, right.stdout)
    assert key not in done.stderr


def test_all_wrong_settings_are_told_at_once(program: Program, home: Path) -> None:
    configure(home, "[llm]\nbackend = 3\ncanary = 7\n")
    done = program("install", "--dry-run")
    assert done.code == 2
    assert "line 2: 3" in done.stderr
    assert "llm.canary must be true, short or false" in done.stderr


# --- names that exist --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("channel", "nightli", "nightly"),
        ("channel", "nope", None),
        ("release", "b1142", "b11429"),
        ("repository", "oficial", "official"),
        ("backend", "cudda", "cuda"),
        ("backend", "cuda-13.3", "cuda-13.4"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_and_marked(
    key: str, value: str, near: str | None, program: Program, as_json: AsJson, home: Path
) -> None:
    refused = program("config", "set", f"llm.{key}", value)
    assert (refused.code, refused.stdout) == (3, "")
    assert not (home / "config.toml").exists()
    if near:
        assert refused.stderr.splitlines()[-1] == f"hint: did you mean {near}?"
    configure(home, f"# mine\n[llm]\n{key} = '{value}'\n")
    listed = program("config", "list")
    (row,) = (each for each in listed.stdout.splitlines() if each.startswith(f"llm.{key} "))
    assert f"instead of '{value}', which is wrong: file " in row
    assert "config.toml, line 3" in listed.stderr
    told = as_json("config", "list")["data"]["settings"]
    (entry,) = (each for each in told if each["key"] == f"llm.{key}")
    assert entry["written"] == value
    assert f"{value!r}" in str(entry["problem"])
    assert all(each["problem"] is None for each in told if each is not entry)


@pytest.mark.usefixtures("home")
def test_a_name_is_checked_against_the_copies_of_this_machine(program: Program) -> None:
    assert program("config", "set", "llm.channel", "index").code == 0
    assert program("config", "set", "llm.release", "B11429").code == 0
    assert program("config", "get", "llm.release").stdout == "b11429\n"
    assert program("config", "set", "llm.repository", "mine").code == 3


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--", "-m", "x"),
        ("serve", "--dry-run", "--", "-m", "x"),
        ("run", "llama-server"),
        ("install", "--dry-run"),
        ("explain",),
    ],
    ids=" ".join,
)
def test_no_hint_repeats_a_wrong_name_as_a_command(
    words: tuple[str, ...], program: Program, home: Path
) -> None:
    configure(home, "[llm]\nbackend = 'cudda'\n")
    done = program(*words)
    assert done.code == 3
    assert "there is no backend or variant 'cudda'" in done.stderr
    assert "config.toml, line 2" in done.stderr
    assert done.stderr.splitlines()[-1] == "hint: did you mean cuda?"
    assert "--backend cudda" not in done.stderr


# --- writing -----------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["backend = 3", "backend = ''", "canary = []\nbakend = 1"])
def test_a_wrong_old_value_is_overwritten_and_keeps_no_other_from_being_set(
    old: str, program: Program, home: Path
) -> None:
    file = configure(home, f"# mine\n[llm]\n{old}\n")
    assert program("config", "set", "llm.backend", "cpu").code == 0
    assert program("config", "set", "llm.min_age", "3").code == 0
    assert program("config", "get", "llm.backend").stdout == "cpu\n"
    assert file.read_text().startswith("# mine\n[llm]\n")


def test_a_mistyped_name_in_the_file_is_removed_by_that_name(program: Program, home: Path) -> None:
    file = configure(home, "[llm]\nbakend = 1 # x\ncanary = true\n")
    assert program("config", "unset", "llm.bakend").stdout == "removed llm.bakend\n"
    assert file.read_text() == "[llm]\ncanary = true\n"
    again = program("config", "unset", "llm.bakend")
    assert (again.code, again.stderr.splitlines()[-1]) == (2, "hint: did you mean llm.backend?")


@pytest.mark.parametrize(
    ("key", "value"),
    [("min_age", "-3"), ("idle_timeout", "-1h"), ("probe_timeout", "-.5")],
)
@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["text", "json"])
def test_a_negative_number_is_a_value_and_refused_as_one(
    key: str, value: str, extra: tuple[str, ...], program: Program
) -> None:
    done = program("config", "set", f"llm.{key}", value, *extra)
    assert done.code == 2
    assert done.stderr.startswith(f"error[bad-config]: llm.{key} must be")
    assert repr(value) in done.stderr


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("min_age=3   # days", "min_age", "3"),
        ("'backend' = 'cpu'", "backend", "cpu"),
        ("mirror = [\n  'https://a.example/', # ours\n]", "mirror", "https://a.example/"),
        ("update_check = true", "update_check", "yes"),
    ],
)
def test_an_equal_value_leaves_the_file_as_it_is(
    written: str, key: str, value: str, program: Program, home: Path
) -> None:
    configure(home, f"[llm]\n{written}\n")
    file = home / "config.toml"
    before, made = file.read_bytes(), file.stat().st_ino
    done = program("config", "set", f"llm.{key}", value)
    assert done.code == 0, done.stderr
    assert file.read_bytes() == before
    assert file.stat().st_ino == made
    assert program("config", "set", "llm.backend", "vulkan").code == 0
    assert file.read_bytes() != before


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_an_empty_value_is_refused_in_every_source(
    key: Any, program: Program, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of a script that was never set must not choose anything."""
    monkeypatch.delenv("TSUKU_LLM_REFRESH")
    given = program("config", "set", key.name, "")
    assert (given.code, given.stdout) == (2, "")
    assert f"{key.name} must not be empty" in given.stderr
    configure(home, f"[llm]\n{key.key} = ''\n")
    listed = program("config", "list")
    assert f"{key.name} must not be empty" in listed.stderr
    assert f"to give no value: tsuku-llm config unset {key.name}" in listed.stderr
    configure(home, "")
    monkeypatch.setenv(key.variable, "")
    by_variable = program("config", "list")
    assert f"{key.name} must not be empty" in by_variable.stderr
    assert f"to give no value: unset {key.variable}" in by_variable.stderr


@pytest.mark.parametrize("flag", ["--backend", "--channel", "--repository", "--release"])
def test_an_empty_flag_is_refused(flag: str, program: Program) -> None:
    done = program("install", "--dry-run", flag, "")
    assert (done.code, done.stdout) == (2, "")
    assert "must not be empty" in done.stderr
    assert f"leave {flag} out" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("config", "set", "llm.channel", "LONG"),
        ("config", "set", "llm.fallback", "LONG"),
        ("config", "set", "LONG", "x"),
        ("config", "get", "LONG"),
        ("config", "unset", "LONG"),
        ("install", "--release", "LONG"),
        ("install", "--channel", "LONG"),
        ("install", "--repository", "LONG"),
        ("install", "--backend", "LONG"),
        ("use", "LONG"),
        ("--LONG",),
        ("LONG",),
    ],
    ids=" ".join,
)
def test_a_value_of_any_length_is_shortened_in_a_message(
    words: tuple[str, ...], program: Program, as_json: AsJson
) -> None:
    words = tuple(word.replace("LONG", "x" * 100_000) for word in words)
    done = program(*words)
    assert done.code != 0
    assert len(done.stderr) < 4000
    assert len(str(as_json(*words)["error"])) < 4000


# --- variables ---------------------------------------------------------------------------


def test_a_variable_that_sets_nothing_is_named(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSUKU_LLM_BACKEN", "cpu")
    monkeypatch.setenv("TSUKU_LLM_XYZZY", "1")
    done = program("list")
    first, second = (each for each in done.stderr.splitlines() if each.startswith("warning: "))
    assert "environment TSUKU_LLM_BACKEN: there is no such setting" in first
    assert first.endswith("did you mean TSUKU_LLM_BACKEND?")
    assert "TSUKU_LLM_XYZZY" in second
    assert "did you mean" not in second


# --- any bytes ---------------------------------------------------------------------------

LINES = st.sampled_from(
    ["[llm]", "[llm", "[[llm]]", "llm = 3", "[llm.x]", "# c", "\x00", "\r", "\ufeff", '"', "'''"]
    + [f"{key.key} = " for key in KEYS]
    + [f"{key.key} = {value}" for key in KEYS[:8] for value in ("''", "3", "true", "[]", "nan")]
)
CONTENTS = st.binary(max_size=200) | st.lists(LINES, max_size=8).map(
    lambda lines: "\n".join(lines).encode()
)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=CONTENTS)
def test_any_bytes_as_config_file_leave_the_codes_as_documented(
    data: bytes, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(home, data)
    for line, code in ALWAYS.items():
        found = run(line.split())
        told = capfd.readouterr()
        assert found == code, (line, told.err)
        assert "Traceback" not in told.err
    assert run(["install", "--dry-run"]) in (0, 2, 3)
    assert run(["config", "set", "llm.canary", "true"]) in (0, 2)
    assert "Traceback" not in capfd.readouterr().err


def test_the_home_of_nobody_keeps_its_error(tmp_path: Path) -> None:
    """Without a home there is no file whose settings could be left out."""
    done = run_program("status", env={**environment(tmp_path), "TSUKU_HOME": ""})
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error[bad-config]: TSUKU_HOME")
