"""``tsuku-llm bundle`` and ``install --bundle`` as their users meet them."""

import json
from pathlib import Path

import pytest
from support.bundles import PYTHON, ProgramShop
from support.folder_shop import FolderShop
from support.release_server import User

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    return FolderShop.offering(tmp_path_factory.mktemp("shops") / "shop", "b1", "b2")


@pytest.fixture(scope="module")
def operator(shop: FolderShop, tmp_path_factory: pytest.TempPathFactory) -> User:
    return shop.user(tmp_path_factory.mktemp("operators") / "operator")


def test_a_bundle_is_made_shown_and_installed_from(
    shop: FolderShop, operator: User, tmp_path: Path
) -> None:
    file = tmp_path / "machines.bundle"
    words = ("bundle", "create", str(file), "--platform", "linux-amd64", "--no-program")
    planned = operator.run(*words, "--dry-run", "--json").document["data"]
    assert (planned["outcome"], planned["sha256"]) == ("planned", None)
    done = operator.run(*words)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith(f"Made the bundle {file}: 1 builds in 1 archives of test, ")
    shown = operator.run("bundle", "show", str(file), "--json").document["data"]
    assert shown["outcome"] == "shown"
    assert f"sha256: {shown['sha256']}" in done.stdout
    assert [each["release"] for each in shown["builds"]] == ["b2"]
    assert shown["programs"] == []
    there = operator.run(*words, "--json")
    assert (there.code, there.document["error"]["code"]) == (2, "bad-usage")
    assert operator.run(*words, "--force").code == 0
    user = shop.user(tmp_path / "user")
    got = user.run(
        "install", "--bundle", str(file), "--json", TSUKU_LLM_MIRROR="https://no.invalid/"
    )
    assert got.document["data"]["release"] == "b2"
    assert user.run("verify").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("install", "--allow-expired"),
        ("install", "--fingerprint", "0" * 64),
        ("install", "--bundle", "x", "--dry-run"),
        ("install", "--bundle", "missing"),
        ("bundle", "show", "missing"),
        ("bundle", "create", "x", "--no-program", "--python", "3.11"),
        ("bundle", "create", "x", "--python", "3.9", "--platform", "linux-amd64"),
        ("bundle", "create", "x", "--python", "three", "--platform", "linux-amd64"),
        ("bundle", "create", "x", "--hardware", "missing"),
        ("bundle", "create", "x", "--platform", "linux-amd64", "--wheel", "missing.whl"),
        ("bundle", "create"),
    ],
    ids=" ".join,
)
def test_what_is_asked_for_wrongly(
    operator: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = operator.run(*words, "--json")
    assert (done.code, done.document["error"]["code"]) in ((2, "bad-usage"), (2, "bad-snapshot"))
    assert done.document["error"]["hint"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--hardware", "--wheel"])
def test_a_wrong_file_is_named_before_any_host_is_asked(
    operator: User, tmp_path: Path, option: str
) -> None:
    (tmp_path / "text").write_text("neither a wheel nor a recorded machine")
    words = ("--platform", "linux-amd64", option, str(tmp_path / "text"))
    nowhere = {
        "TSUKU_LLM_REPOSITORY": "official",
        "TSUKU_LLM_REPOSITORY_URL": "https://no.invalid/",
    }
    done = operator.run("bundle", "create", str(tmp_path / "x"), *words, **nowhere)
    assert done.code == 2, done.stderr
    assert str(tmp_path / "text") in done.stderr


@pytest.mark.parametrize(
    ("platform", "extra", "said"),
    [
        ("unknown", ("--no-program",), "there is no platform 'unknown'"),
        ("plan9-amd64", (), "there is no platform 'plan9-amd64'"),
        ("linux-", (), "there is no platform 'linux-'"),
        ("amd64-linux", (), "hint: "),
        ("linux-s390x", (), "leave it out: --no-program"),
    ],
)
def test_a_platform_that_cannot_be_is_refused_before_any_host_is_asked(
    operator: User, tmp_path: Path, platform: str, extra: tuple[str, ...], said: str
) -> None:
    nowhere = {
        "TSUKU_LLM_REPOSITORY": "official",
        "TSUKU_LLM_REPOSITORY_URL": "https://no.invalid/",
    }
    words = ("bundle", "create", str(tmp_path / "x"), "--platform", platform, *extra)
    done = operator.run(*words, **nowhere)
    assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert "no.invalid" not in done.stderr


def test_a_package_index_without_the_locked_wheels_is_an_error(
    operator: User, tmp_path: Path
) -> None:
    program = ProgramShop(tmp_path / "wheels")
    before = sorted(tmp_path.iterdir())
    index = {key: value for key, value in program.environ.items() if key.startswith("PIP_")}
    done = operator.run(
        *("bundle", "create", str(tmp_path / "x"), "--platform", "linux-amd64", "--json"),
        *("--wheel", str(program.wheel), "--python", PYTHON),
        **index,
    )
    # These wheels have other digests than the locked ones, or there are none.
    error = done.document["error"]
    assert (done.code, error["code"]) in ((4, "package-index"), (5, "digest-mismatch"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_file_is_one_clear_error(
    shop: FolderShop, operator: User, tmp_path: Path
) -> None:
    file = tmp_path / "x"
    made = operator.run("bundle", "create", str(file), "--platform", "linux-amd64", "--no-program")
    assert made.code == 0, made.stderr
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    shown = operator.run("bundle", "show", str(file), "--json")
    assert (shown.code, shown.document["error"]["code"]) == (5, "bad-bundle")
    file.write_text(json.dumps({"no": "bundle"}))
    user = shop.user(tmp_path / "user")
    done = user.run("install", "--bundle", str(file), "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "bad-bundle")
    assert not user.versions()
