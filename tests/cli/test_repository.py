"""Repositories: which roots of trust are taken, and where metadata is fetched."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path

import pytest
from securesystemslib.signer import SSlibKey
from support.program import COMMAND, Result, environment, run_program
from support.repository import RepositorySimulator, release_document
from support.tools import require_tool

Program = Callable[..., Result]

# --- the roots of repositories ----------------------------------------------------------------


def offered(simulator: RepositorySimulator, folder: Path) -> tuple[str, ...]:
    """Return the arguments that add a repository with this root; no host has its address."""
    root = folder / "root.json"
    root.write_bytes(simulator.pinned_root)
    return ("repository", "add", "ours", "https://127.0.0.1:1/", "--root", str(root))


def served(simulator: RepositorySimulator, folder: Path) -> tuple[str, ...]:
    """The same, with an address where the repository's files are."""
    simulator.write(folder / "host")
    *words, _, flag, root = offered(simulator, folder)
    return (*words, f"{(folder / 'host').as_uri()}/", flag, root)


def weak(public: str, keytype: str = "ed25519", scheme: str = "ed25519") -> Callable[..., None]:
    def change(simulator: RepositorySimulator) -> None:
        key = SSlibKey("b" * 64, keytype, scheme, {"public": public})
        simulator.root.add_key(key, "targets")

    return change


def unsigned(simulator: RepositorySimulator) -> None:
    simulator.signers["root"] = simulator.signers["root"][:1]


def zero(simulator: RepositorySimulator) -> None:
    simulator.root.roles["targets"].threshold = 0


def twice(simulator: RepositorySimulator) -> None:
    value = simulator.signers["targets"][0].public_key.keyval["public"]
    weak(value)(simulator)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (weak("01" + "00" * 31), "small order"),
        (weak("ec" + "ff" * 30 + "7f"), "small order"),
        (weak("ee" + "ff" * 30 + "7f"), "small order"),
        (weak("5" * 62), "malformed"),
        (weak("04" + "5" * 128, "ecdsa", "ecdsa-sha2-nistp256"), "malformed"),
        (unsigned, "1 valid signatures, 2 are needed"),
        (zero, "threshold"),
        (twice, "one public key twice"),
    ],
    ids=["neutral", "order_2", "not_canonical", "short", "ecdsa", "unsigned", "zero", "M06_twin"],
)
def test_a_weak_root_of_trust_is_refused(
    program: Program, tmp_path: Path, change: Callable[..., None], why: str
) -> None:
    simulator = RepositorySimulator()
    change(simulator)
    simulator.sign_root()
    refused = program(*offered(simulator, tmp_path))
    assert refused.code == 5
    assert why in refused.stderr
    assert program("repository", "list").stdout.count("\n") == 1, "only the official one"


def test_a_root_that_one_key_can_sign_is_accepted_with_a_warning(
    program: Program, tmp_path: Path
) -> None:
    simulator = RepositorySimulator()
    assert "one key alone" not in program(*offered(simulator, tmp_path)).stderr
    assert program("repository", "remove", "ours").code == 0
    simulator.root.roles["targets"].threshold = 1
    simulator.sign_root()
    added = program(*offered(simulator, tmp_path))
    assert added.code == 0
    assert "one key alone can sign its targets" in added.stderr


# --- the fingerprint of a root ------------------------------------------------------------------


def test_T36_a_root_of_another_repository_is_not_kept(program: Program, tmp_path: Path) -> None:
    RepositorySimulator(name="other").write(tmp_path / "host")
    name, root = offered(RepositorySimulator(), tmp_path)[2], str(tmp_path / "root.json")
    refused = program("repository", "add", name, f"{(tmp_path / 'host').as_uri()}/", "--root", root)
    assert refused.code == 5
    assert "hint: nothing was added: ask the owner" in refused.stderr
    assert "ours" not in program("repository", "list").stdout


MISTAKES: dict[str, Callable[[RepositorySimulator], object]] = {
    "a_day": lambda simulator: simulator.timestamp.unrecognized_fields.update(issued="2026-11-20"),
    "a_number": lambda simulator: simulator.targets.unrecognized_fields.update(issued=20261120),
    "an_offset": lambda simulator: simulator.snapshot.unrecognized_fields.update(
        issued="2026-11-20T00:00:00+01:00"
    ),
    "in_the_root": lambda simulator: simulator.root.unrecognized_fields.update(issued="today"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_repository_whose_owner_made_a_mistake_is_not_kept(
    program: Program, tmp_path: Path, name: str
) -> None:
    simulator = RepositorySimulator()
    MISTAKES[name](simulator)
    simulator.sign_root()
    simulator.bump()
    refused = program(*served(simulator, tmp_path))
    assert refused.code == 5
    assert "and not a time such as 2026-11-20T00:00:00Z" in refused.stderr
    assert "nothing was added: ask the owner" in refused.stderr
    assert "repository refresh" not in refused.stderr
    assert "ours" not in program("repository", "list").stdout


def test_nothing_is_added_is_said_of_expired_metadata_too(program: Program, tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    simulator.expire("timestamp", datetime(2026, 11, 1, tzinfo=timezone.utc))
    refused = program(*served(simulator, tmp_path))
    assert "error[stale-metadata]" in refused.stderr
    assert "  nothing was added\n" in refused.stderr
    assert "ours" not in program("repository", "list").stdout


def test_T36_a_root_with_another_fingerprint_is_refused(
    program: Program, tmp_path: Path, tsuku_home: Path
) -> None:
    """An attacker on the network replaced the file; the fingerprint came by another way."""
    genuine = sha256(RepositorySimulator().pinned_root).hexdigest()
    stranger = RepositorySimulator(name="stranger")
    words = offered(stranger, tmp_path)
    refused = program(*words, "--fingerprint", genuine)
    found = sha256(stranger.pinned_root).hexdigest()
    assert refused.code == 5
    assert refused.stderr.startswith("error[digest-mismatch]: the root of trust has another")
    assert f"  given: {genuine}\n  found: {found}\n" in refused.stderr
    assert not (tsuku_home / "llm").exists(), "nothing was kept"


@pytest.mark.parametrize("given", [True, False])
def test_the_fingerprint_is_to_be_compared_unless_it_was(
    program: Program, tmp_path: Path, *, given: bool
) -> None:
    simulator = RepositorySimulator()
    words = ["--fingerprint", sha256(simulator.pinned_root).hexdigest()] if given else []
    last = program(*offered(simulator, tmp_path), *words).stdout.splitlines()[-1]
    assert last.startswith("it is the fingerprint" if given else "compare the fingerprint")


@pytest.mark.parametrize("spell", [str.upper, lambda text: ":".join(re.findall("..", text))])
def test_a_fingerprint_is_accepted_in_the_spelling_of_common_tools(
    program: Program, tmp_path: Path, spell: Callable[[str], str]
) -> None:
    simulator = RepositorySimulator()
    words = offered(simulator, tmp_path)
    fingerprint = sha256(simulator.pinned_root).hexdigest()
    added = program(*words, "--fingerprint", spell(fingerprint), "--json")
    data = json.loads(added.stdout)["data"]
    assert (added.code, data["fingerprint"]) == (0, fingerprint)
    assert data["number"] == 1
    assert data["roles"]["root"]["threshold"] == 2
    keys = {signer.public_key.keyid for signer in simulator.signers["root"]}
    assert {*data["roles"]["root"]["keys"]} == keys
    assert f"root sha256 {fingerprint}" in program("repository", "list").stdout


@pytest.mark.parametrize("junk", ["abc", "g" * 64, "0" * 63, "0" * 65])
def test_a_malformed_fingerprint_is_named(program: Program, tmp_path: Path, junk: str) -> None:
    refused = program(*offered(RepositorySimulator(), tmp_path), "--fingerprint", junk)
    assert (refused.code, "64 hexadecimal digits" in refused.stderr) == (2, True)
    assert program("repository", "list").stdout.count("\n") == 1


# --- the address of a repository ----------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://host.example/\x1b[2Jllm/",
        "https://host.example/\x1b]0;title\x07/",
        "https://host\x00.example/",
        "https://host.exam\nple/llm/",
        "https://host.example/l\tlm/",
        "\rhttps://host.example/",
        " https://host.example/",
        "https://host.example/two words/",
        "https://host.example/\x7f",
        "https://host.example/\x9b2J",
        "https://host.example/\u202e/mll",
        "https://host.example/\u200b",
        "https://host.example\\@other.example/",
        "https://host.example\\.other.example/",
        "file:///srv/\x1b[2J/",
        "file:///srv/a\u2028b/",
    ],
    ids=ascii,
)
def test_T37_a_url_with_invisible_characters_is_refused(
    program: Program, tmp_path: Path, tsuku_home: Path, url: str
) -> None:
    words = list(offered(RepositorySimulator(), tmp_path))
    words[3] = url
    refused = program(*words)
    assert (refused.code, "control characters" in refused.stderr) == (2, True)
    assert not (tsuku_home / "llm" / "metadata" / "ours").exists()


# --- where the official repository is fetched ---------------------------------------------------


def test_the_setting_changes_the_url_of_the_official_repository(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mirror on a disk, such as the folder that is published."""
    mirror = tmp_path / "mirror"
    shutil.copytree(Path(__file__).parents[2] / "manifests", mirror)
    monkeypatch.setenv("TSUKU_LLM_REPOSITORY_URL", mirror.as_uri())
    fetched = program("repository", "refresh")
    assert (fetched.code, "b11429" in fetched.stdout) == (0, True), fetched.stderr
    assert fetched.stdout.startswith("Refreshed the repository official.\n")
    shutil.rmtree(mirror)
    gone = program("repository", "refresh")
    assert (gone.code, "no file timestamp.json" in gone.stderr) == (4, True)


def test_the_setting_does_not_change_other_repositories(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"))
    simulator.write(tmp_path / "ours")
    words = list(offered(simulator, tmp_path))
    words[3] = (tmp_path / "ours").as_uri()
    monkeypatch.setenv("TSUKU_LLM_REPOSITORY_URL", (tmp_path / "elsewhere").as_uri())
    assert program(*words).code == 0
    fetched = program("repository", "refresh", "ours")
    assert (fetched.code, "b1" in fetched.stdout) == (0, True), fetched.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
@pytest.mark.parametrize("line", ["install --dry-run", "repository list", "doctor"])
def test_C04_a_repository_that_cannot_be_read_is_one_error(
    home: Path, tmp_path: Path, line: str
) -> None:
    """Most questions of pathlib raise, and do not say no, if the disk fails."""
    env = environment(home)
    simulator = RepositorySimulator()
    assert run_program(*offered(simulator, tmp_path), env=env).code == 0
    file = home / "llm" / "metadata" / "ours" / "repository.json"
    inject = ("-e", "inject=newfstatat,stat,lstat:error=EIO", "-P", str(file))
    strace = (require_tool("strace"), "-f", "-qq", "-o", str(tmp_path / "trace"), *inject)
    done = run_program(*line.split(), env=env, command=(*strace, *COMMAND))
    assert "EIO" in (tmp_path / "trace").read_text()
    assert done.code in (0, 6), done.stderr
    assert "Traceback" not in done.stderr
