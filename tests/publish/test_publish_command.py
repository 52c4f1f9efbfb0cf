"""The command line of ``tsuku-publish``: the client's rules, and what a plain install lacks."""

import json
from collections.abc import Mapping
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import tomli
from packaging.requirements import Requirement
from support.own_publisher import SIGNERS, write_plan
from support.program import PUBLISHER, Result, environment, run_program
from support.release_data import signers_file
from support.repository import release_document

from tsuku_llm import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A publisher's folder: a plan, and one release file."""
    data = tmp_path / "data"
    (data / "releases").mkdir(parents=True)
    write_plan(data, {"stable": ["b1"]})
    (data / "releases" / "b1.json").write_text(json.dumps(release_document("b1")), "utf-8")
    return data


def typed(data: Path, *words: str, **environ: str) -> Result:
    env = environment(data.parent / "home", **environ)
    return run_program(*words, env=env, cwd=data, command=PUBLISHER)


def told(data: Path, *words: str, **environ: str) -> Mapping[str, Any]:
    """The one document of a command with ``--json``."""
    done = typed(data, *words, "--json", **environ)
    assert done.stdout.count("\n") == 1, done.stderr
    assert done.document["exit_code"] == done.code
    assert done.document["command"] == words[0]
    return done.document


def test_each_step_of_a_publisher_tells_programs_what_it_did(data: Path) -> None:
    environ = signers_file(data.parent / "signers.json", *SIGNERS)
    ones = dict.fromkeys(("root", "targets", "snapshot", "timestamp"), 1)
    reviewed = told(data, "review", "--write", "review")["data"]
    assert reviewed["files"] == {"releases/b1.json": ["stable"]}
    assert (data / "review" / "releases" / "b1.json").exists()
    signed = told(data, "sign", "--yes", **environ)["data"]
    assert signed == {
        "folder": "signed",
        "versions": ones,
        "notes": ["signed: 5 files, signed and checked"],
    }
    served = told(data, "publish", "served")["data"]
    assert served == {"target": "served", "versions": ones, "wheel": None}
    revoked = told(data, "revoke", "b1", "--reason", "it leaks", "--on", "2026-11-22")["data"]
    assert revoked == {"release": "b1", "date": "2026-11-22", "reason": "it leaks"}
    assert told(data, "sign", "--raise", "--yes", **environ)["data"]["versions"] == {
        **ones,
        **dict.fromkeys(("targets", "snapshot", "timestamp"), 2),
    }
    assert told(data, "resign", **environ)["data"]["versions"]["timestamp"] == 3
    checked = told(data, "check", "--published", "served", "--on", "2026-11-22")
    assert (checked["status"], checked["error"]["code"]) == ("error", "publish")
    assert "is embedded, and only 1 is published" in checked["error"]["message"]
    checked = told(data, "check", "--on", "2026-11-22")["data"]
    assert checked["roles"]["timestamp"]["number"] == 3
    assert (checked["root"], checked["late"]) == (1, [])
    assert [each["release"] for each in checked["revoked"]] == ["b1"]
    withdrawn = told(data, "withdraw", "b1", "--on", "2026-11-23")["data"]
    assert withdrawn == {"release": "b1", "withdrawn": "2026-11-23"}
    made = told(data, "new-signer", "dana", "dana.json", "--unencrypted")["data"]
    assert made["name"] == "dana"
    assert len(made["public"]) == 64


def test_a_revocation_of_a_day_to_come_is_recorded_with_a_warning(data: Path) -> None:
    done = typed(data, "revoke", "b1", "--reason", "it leaks", "--on", "2199-01-01")
    assert done.code == 0
    assert done.stderr.startswith("warning: 2199-01-01 has not come yet")
    assert not typed(data, "withdraw", "b1", "--on", "2199-01-01").stderr
    again = typed(data, "revoke", "b1", "--reason", "it leaks", "--on", "2000-01-01")
    assert "a new one needs a later day" in again.stderr


def test_a_late_role_is_an_error_with_what_was_found(data: Path) -> None:
    environ = signers_file(data.parent / "signers.json", *SIGNERS)
    assert told(data, "sign", "--yes", **environ)["status"] == "ok"
    late = told(data, "check", "--on", "2126-10-25")
    assert (late["exit_code"], late["error"]["code"]) == (1, "publish")
    assert late["error"]["message"].startswith("sign again: ")
    assert len(late["data"]["late"]) == 4


@pytest.mark.parametrize(
    ("words", "code", "slug"),
    [
        ((), 0, None),
        (("--version",), 0, None),
        (("sign", "--help"), 0, None),
        (("sing",), 2, "bad-usage"),
        (("sign", "--nothing"), 2, "bad-usage"),
        (("sign",), 1, "publish"),
        (("check", "https://host.invalid/"), 1, "publish"),
        (("pack", "none", "none.json", "--variant=x", "--into=.", "--url=https://a.test"), 2,
         "bad-usage"),
    ],
)  # fmt: skip
def test_exit_codes_and_slugs_are_those_of_the_documents(
    data: Path, words: tuple[str, ...], code: int, slug: str | None
) -> None:
    done = typed(data, *words)
    assert done.code == code, done.stderr
    assert done.stderr.startswith(f"error[{slug}]: ") if slug else not done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("review", "--write", "file/review"), "file/review/releases cannot be read or written: "),
        (("publish", "file/served"), "file/served cannot be made: "),
        (("revoke", "b1", "--by-name", "--reason=x", "--data=none"), "cannot be read: "),
        (("sign", "--data=none"), "none/repository.toml cannot be read: "),
    ],
)
def test_a_place_that_cannot_be_used_is_one_error_with_what_it_is(
    data: Path, words: tuple[str, ...], told: str
) -> None:
    environ = signers_file(data.parent / "signers.json", *SIGNERS)
    assert typed(data, "sign", "--yes", **environ).code == 0
    (data / "file").touch()
    done = typed(data, *words, **environ)
    first = done.stderr.splitlines()[0]
    assert (done.code, done.stdout) == (1, "")
    assert first.startswith("error[publish]: ")
    assert told in first
    # The system's words, without the number that Python puts before them.
    assert "Errno" not in done.stderr
    assert done.stderr.count("error[") == 1


def test_the_version_is_the_distribution_s(data: Path) -> None:
    assert typed(data, "--version").stdout == f"tsuku-publish {__version__}\n"


# --- the two distributions ----------------------------------------------------------------


def test_the_publisher_needs_the_client_of_its_own_version() -> None:
    needs = {each.name: each for each in map(Requirement, requires("tsuku-publish") or ())}
    assert str(needs["tsuku-llm"].specifier) == f"=={__version__}"
    assert version("tsuku-publish") == __version__


def test_the_client_needs_nothing_that_only_the_publisher_needs() -> None:
    needs = [Requirement(each) for each in requires("tsuku-publish") or ()]
    only = {each.name for each in needs if "extra" not in str(each.marker)} - {"tsuku-llm"}
    client = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    assert only == {"backports-zstd", "lief", "pyyaml", "sigstore"}
    assert not only & {Requirement(each).name for each in client}
    locked = (ROOT / "installer/tsuku_llm/locked.txt").read_text("utf-8")
    assert not [name for name in only if f"\n{name}==" in locked]


def test_N05_the_version_of_the_program_is_reviewed_and_signed(data: Path) -> None:
    environ = signers_file(data.parent / "signers.json", *SIGNERS)
    assert told(data, "review")["data"]["review"]["program"] is None
    told(data, "sign", "--yes", **environ)
    plan = data / "repository.toml"
    before = plan.read_text("utf-8")
    plan.write_text(f'[program]\nversion = "0.2.0"\nsha256 = "{"a" * 64}"\n{before}', "utf-8")
    reviewed = told(data, "review")["data"]["review"]
    assert reviewed["program"] == f"0.2.0 sha256:{'a' * 64} instead of nothing"
    assert f"PROGRAM   0.2.0 sha256:{'a' * 64} instead of nothing" in typed(data, "review").stdout
    told(data, "sign", "--raise", "--yes", **environ)
    targets = json.loads((data / "signed/metadata/2.targets.json").read_text("utf-8"))
    assert targets["signed"]["program"] == {"version": "0.2.0", "sha256": "a" * 64}
    assert told(data, "review")["data"]["review"]["program"] is None
    # A signature also takes it away: the review says that.
    head = f'[program]\nversion = "0.2.0"\nsha256 = "{"a" * 64}"\n'
    plan.write_text(plan.read_text("utf-8").replace(head, ""), "utf-8")
    reviewed = told(data, "review")["data"]["review"]
    assert reviewed["program"] == f"nothing instead of 0.2.0 sha256:{'a' * 64}"


def test_N05_the_archives_of_the_program_are_reviewed_and_signed(data: Path) -> None:
    environ = signers_file(data.parent / "signers.json", *SIGNERS)
    plan = data / "repository.toml"
    name = "tsuku-llm-0.2.0-linux-x86_64.tar.gz"
    head = f'version = "0.2.0"\nsha256 = "{"a" * 64}"\narchives = {{"{name}" = "{"b" * 64}"}}'
    plan.write_text(f"[program]\n{head}\n{plan.read_text('utf-8')}", "utf-8")
    reviewed = told(data, "review")["data"]["review"]["program"]
    assert reviewed == f"0.2.0 sha256:{'a' * 64} {name} sha256:{'b' * 64} instead of nothing"
    told(data, "sign", "--yes", **environ)
    targets = json.loads((data / "signed/metadata/1.targets.json").read_text("utf-8"))
    assert targets["signed"]["program"]["archives"] == {name: "b" * 64}


@pytest.mark.parametrize(
    "table",
    [
        *('version = "0.2.0"', f'sha256 = "{"a" * 64}"', f'version = 2\nsha256 = "{"a" * 64}"'),
        *('version = "0.2.0"\nsha256 = "aa"', f'version = "new"\nsha256 = "{"a" * 64}"'),
        *('version = "0.2.0"\nsha256 = "é"', f'version = "1\\n"\nsha256 = "{"a" * 64}"'),
        f'version = "0.2.0"\nsha256 = "{"A" * 64}"',
        f'version = "0.2.0"\nsha256 = "{"a" * 64}"\nurl = "https://example.org/"',
        f'version = "0.2.0"\nsha256 = "{"a" * 64}"\narchives = {{"sha256" = "{"b" * 64}"}}',
    ],
)
def test_N05_a_program_that_clients_could_not_understand_is_not_signed(
    table: str, data: Path
) -> None:
    plan = data / "repository.toml"
    plan.write_text(f"[program]\n{table}\n{plan.read_text('utf-8')}", "utf-8")
    done = told(data, "review")
    assert (done["exit_code"], done["error"]["code"]) == (1, "publish")
