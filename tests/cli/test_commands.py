"""The commands in processes of their own, with the embedded manifest and good and bad input."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support import schemas
from support.program import COMMAND, Result, environment, run_program

from tsuku_llm.machine.backends import REQUESTS

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/sys of Linux")
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

Program = Callable[..., Result]
AsJson = Callable[..., Any]


def settings(home: Path, **extra: str) -> dict[str, tuple[Any, str]]:
    """What ``config list`` says is in force, and from where."""
    told = run_program("config", "list", "--json", env=environment(home, **extra)).document
    return {each["key"]: (each["value"], each["source"]) for each in told["data"]["settings"]}


def with_root(words: tuple[str, ...]) -> tuple[str, ...]:
    """The embedded root in the place of a company's."""
    from importlib.resources import as_file, files  # noqa: PLC0415

    with as_file(files("tsuku_llm.manifests") / "metadata" / "1.root.json") as root:
        return tuple(str(root) if word == "1.root.json" else word for word in words)


# --- settings ----------------------------------------------------------------------------


def test_a_setting_is_written_shown_and_unset(tmp_path: Path) -> None:
    env = environment(tmp_path)
    file = tmp_path / "config.toml"
    written = run_program("config", "set", "llm.backend", "vulkan", env=env)
    assert written == Result(0, f"llm.backend = vulkan (file {file})\n", "")
    assert run_program("config", "get", "llm.backend", env=env) == Result(0, "vulkan\n", "")
    assert settings(tmp_path)["llm.backend"] == ("vulkan", f"file {file}")
    assert run_program("config", "unset", "llm.backend", env=env).code == 0
    assert settings(tmp_path)["llm.backend"] == ("auto", "default")


def test_the_environment_overrides_the_file_and_is_named(tmp_path: Path) -> None:
    env = environment(tmp_path, TSUKU_LLM_BACKEND="cpu")
    written = run_program("config", "set", "llm.backend", "vulkan", env=env)
    assert written.stdout == "llm.backend = cpu (environment TSUKU_LLM_BACKEND)\n"
    assert settings(tmp_path, TSUKU_LLM_BACKEND="cpu")["llm.backend"] == (
        "cpu",
        "environment TSUKU_LLM_BACKEND",
    )


@pytest.mark.parametrize("word", ["quantum", "cuda-99.9"])
def test_an_unknown_backend_is_refused_with_the_known_ones(word: str, tmp_path: Path) -> None:
    result = run_program("config", "set", "llm.backend", word, env=environment(tmp_path))
    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[0].startswith("error[unknown-request]: ")
    assert all(request in result.stderr for request in REQUESTS)
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("config", "set", "llm.backend", "vulcan"), "vulkan"),
        (("explain", "--channel", "stabel"), "stable"),
        (("explain", "--release", "b1149"), "b11429"),
        (("explain", "--repository", "oficial"), "official"),
    ],
)
def test_a_mistyped_name_gets_the_most_similar_one(
    words: tuple[str, ...], near: str, program: Program
) -> None:
    result = program(*words)
    assert result.code in (2, 3)
    assert result.stderr.splitlines()[-1] == f"hint: did you mean {near}?"


@pytest.mark.parametrize("word", ["b1 or b2", "b" * 100_000])
def test_what_cannot_be_a_release_is_refused(word: str, program: Program) -> None:
    result = program("explain", "--release", word)
    assert result.code == 2
    assert result.stderr.startswith("error[bad-usage]: --release must be a name")
    assert len(result.stderr) < 300


@pytest.mark.parametrize("word", ["auto", "gpu", "cpu", "cuda", "HIP", "nvidia"])
def test_a_known_backend_is_accepted(word: str, program: Program) -> None:
    assert program("config", "set", "llm.backend", word).code == 0


def test_credentials_are_shown_only_on_request(program: Program) -> None:
    url = "https://me:secret@mirror.example/x"
    assert "secret" not in program("config", "set", "llm.mirror", url).stdout
    assert "secret" not in program("config", "list").stdout
    assert "secret" not in program("config", "list", "--json").stdout
    assert program("config", "get", "llm.mirror").stdout == f"{url}\n"


def test_an_unknown_setting_in_the_file_is_reported(tmp_path: Path, tsuku_home: Path) -> None:
    tsuku_home.mkdir()
    (tsuku_home / "config.toml").write_text("[llm]\nbakend = 'cpu'\n")
    result = run_program("config", "list", env=environment(tsuku_home))
    assert result.code == 0
    assert result.stderr.startswith("warning: ")
    assert "llm.bakend" in result.stderr
    listed = run_program("list", env=environment(tsuku_home), cwd=tmp_path)
    assert listed.code == 0
    assert "llm.bakend" in listed.stderr


# --- the decision ------------------------------------------------------------------------


def test_explain_has_a_reason_or_a_rank_for_each_variant(as_json: AsJson) -> None:
    data = as_json("explain")["data"]
    assert data["requested"] == "auto"
    assert "cpu" in data["detected"]
    assert data["variants"]
    for each in data["variants"]:
        assert each["compatible"] == (each["reason"] is None) == (each["rank"] is not None)


def test_the_backend_of_the_flag_is_used_or_refused_with_every_reason(
    program: Program, as_json: AsJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSUKU_LLM_BACKEND", "cpu")
    assert as_json("explain")["data"]["requested"] == "cpu"
    assert as_json("explain", "--backend", "rocm")["data"]["requested"] == "rocm"
    names = {each["variant"] for each in as_json("explain")["data"]["variants"]}
    if as_json("explain", "--backend", "rocm")["data"]["selected"] is None:
        result = program("install", "--dry-run", "--backend", "rocm")
        assert (result.code, result.stdout) == (3, "")
        assert all(f"  {name}: " in result.stderr for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "--backend", "quantum"),
        ("explain", "--channel", "weekly"),
        ("explain", "--release", "b1"),
        ("explain", "--repository", "nobody"),
        ("install", "--dry-run", "--release", "v99"),
        ("list", "--available", "--repository", "nobody"),
        ("repository", "remove", "nobody"),
    ],
    ids=" ".join,
)
def test_a_name_that_does_not_exist_is_exit_code_3(
    words: tuple[str, ...], program: Program
) -> None:
    result = program(*words)
    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.startswith("error[unknown-request]: ")


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "--hardware", "missing.json"),
        ("explain", "--hardware", "."),
        ("probe", "--record", "missing/file.json"),
        ("repository", "add", "ours", "https://127.0.0.1:1/", "--root", "missing.json"),
        ("repository", "add", "OURS!", "https://127.0.0.1:1/", "--root", "missing.json"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_used_is_one_error(
    words: tuple[str, ...], program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = program(*words)
    assert result.code in (2, 6)
    assert result.stdout == ""
    assert result.stderr.startswith("error[")
    assert "Traceback" not in result.stderr


def test_a_recorded_machine_is_explained_as_it_was(as_json: AsJson, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    recorded = as_json("probe", "--record", str(file))["data"]
    assert recorded["recorded"] == str(file)
    told = as_json("explain", "--hardware", str(file))["data"]
    here = as_json("explain")["data"]
    assert told["simulated"]
    assert (told["detected"], told["selected"]) == (here["detected"], here["selected"])


def test_the_releases_of_the_manifest_are_listed(program: Program, as_json: AsJson) -> None:
    releases = as_json("list", "--available")["data"]["releases"]
    channels = {channel for each in releases for channel in each["channels"]}
    assert {"stable", "nightly", "index"} <= channels
    shown = program("list", "--available").stdout
    assert all(each["release"] in shown for each in releases)


def test_a_repository_is_added_listed_and_removed(program: Program, as_json: AsJson) -> None:
    root = with_root(("1.root.json",))[0]
    url = "https://127.0.0.1:1/ours/"
    added = program("repository", "add", "ours", url, "--root", root)
    fingerprint = sha256(Path(root).read_bytes()).hexdigest()
    assert (added.code, added.stdout.splitlines()[0]) == (0, "Added the repository ours.")
    assert f"  its address is {url}\n" in added.stdout
    assert f"fingerprint (SHA-256) {fingerprint}\n" in added.stdout
    assert "  targets    2 of 3 keys  " in added.stdout
    told = as_json("repository", "list")["data"]["repositories"]
    official, ours = told
    assert (official["name"], official["source"]) == ("official", "embedded")
    assert official["signed"] < official["expires"]
    assert ours == {
        "name": "ours",
        "url": url,
        "others": [],
        "fingerprint": fingerprint,
        "source": None,
        "signed": None,
        "expires": None,
        "state": "there is no valid metadata of repository 'ours' on this machine",
    }
    shown = program("repository", "list").stdout.splitlines()
    assert [line.split()[:2] for line in shown] == [[each["name"], each["url"]] for each in told]
    assert "embedded, signed on 20" in shown[0]
    assert shown[1].endswith(f"root sha256 {fingerprint}")
    said = "Removed the repository ours; its builds stay installed.\n"
    assert program("repository", "remove", "ours") == Result(0, said, "")
    assert len(as_json("repository", "list")["data"]["repositories"]) == 1


@pytest.mark.parametrize("words", [("update",), ("update", "--check")], ids=" ".join)
def test_nothing_installed_cannot_be_updated(words: tuple[str, ...], program: Program) -> None:
    result = program(*words)
    assert (result.code, result.stdout) == (7, "")
    assert result.stderr.startswith("error[not-installed]: ")


WATCHED = """
import sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        sys.stderr.write(f"network: {event}\\n")

sys.addaudithook(watch)
from tsuku_llm.cli.entry import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_dry_run_shows_everything_and_uses_no_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "install", "--dry-run", "--json"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stderr == ""
    data = schemas.read(done.stdout)["data"]
    assert data["outcome"] == "planned"
    assert data["selected"] == data["variant"]
    for artifact in data["artifacts"]:
        assert artifact["url"].startswith("https://")
        assert len(artifact["sha256"]) == 64
        assert artifact["size"] is None or artifact["size"] > 1_000_000
    assert not list(tmp_path.iterdir())


# --- homes that cannot be written --------------------------------------------------------

WRITING = [
    ("config", "set", "llm.channel", "nightly"),
    ("install", "--channel", "index"),
    ("repository", "add", "ours", "https://127.0.0.1:1/", "--root", "1.root.json"),
]


@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
def test_a_home_below_a_file_is_one_error(words: tuple[str, ...], tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.write_text("mine")
    result = run_program(*with_root(words), env=environment(blocker / "home"))
    assert result.code in (2, 6)
    # Notes may come before it: which release fits depends on this machine's processor.
    assert len([line for line in result.stderr.splitlines() if line.startswith("error[")]) == 1
    assert "Traceback" not in result.stderr
    assert blocker.read_text() == "mine"


def is_read_only(folder: Path) -> bool:
    """Say if nothing can be made there: sysfs refuses it, but a sandbox may lack sysfs."""
    probe = folder / "tsuku-llm-probe"
    try:
        probe.mkdir()
    except OSError:
        return folder.is_dir()
    probe.rmdir()
    return False


@linux
@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
def test_a_home_on_a_read_only_disk_is_exit_code_6(words: tuple[str, ...]) -> None:
    if not is_read_only(Path("/sys")):
        pytest.skip("there is no /sys here, or it may be written")
    result = run_program(*with_root(words), env=environment(Path("/sys/tsuku-llm-tests")))
    assert (result.code, result.stdout) == (6, "")
    assert "error[not-writable]: " in {line[:21] for line in result.stderr.splitlines()}


# --- interrupted -------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["text", "json"])
def test_a_signal_in_a_download_stops_it_and_leaves_nothing(
    number: signal.Signals, code: int, extra: tuple[str, ...], tmp_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(120)
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        env = environment(tmp_path, PIP_INDEX_URL=index, PIP_CONFIG_FILE=os.devnull)
        with (
            subprocess.Popen(
                [*COMMAND, "install", "--channel", "index", *extra],
                env={
                    name: value
                    for name, value in env.items()
                    if not name.lower().endswith("_proxy")
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as child,
            closing(silent.accept()[0]),
        ):
            child.send_signal(number)
            out, err = child.communicate(timeout=600)
    assert child.returncode == code
    assert err.splitlines()[-1] == "error[interrupted]: stopped on request"
    assert "Traceback" not in err
    assert (schemas.read(out)["error"]["code"] == "interrupted") if extra else (out == "")
    data = tmp_path / "llm"
    assert not list(data.glob("versions/*"))
    assert not list(data.glob("staging/*"))
    assert run_program("list", env=environment(tmp_path)).code == 0
