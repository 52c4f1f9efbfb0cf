"""``tsuku-llm mirror`` as its users meet it."""

from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import environment, run_program
from support.release_server import User


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    return FolderShop.offering(tmp_path_factory.mktemp("shops") / "shop", "b1", "b2")


@pytest.fixture
def operator(shop: FolderShop, tmp_path: Path) -> User:
    return shop.user(tmp_path / "operator")


def test_a_mirror_is_made_used_and_checked(
    shop: FolderShop, operator: User, tmp_path: Path
) -> None:
    place = tmp_path / "mirror"
    planned = operator.run("mirror", str(place), "--dry-run", "--json").document
    assert (planned["data"]["outcome"], planned["data"]["artifacts"]) == ("planned", 2)
    done = operator.run("mirror", str(place))
    assert done.code == 0, done.stderr
    assert done.stdout.startswith(f"The mirror {place} of test has 2 archives of 2 releases, ")
    again = operator.run("mirror", str(place), "--prune", "--json").document["data"]
    assert (again["outcome"], again["fetched"]) == ("unchanged", [])
    assert again["swept"] == {"unused": [], "size": 0, "foreign": []}
    checked = operator.run("mirror", str(place), "--check")
    assert checked.code == 0
    assert "is intact: 2 archives" in checked.stdout
    client = User(tmp_path / "client", shop.user(tmp_path / "client").env)
    got = client.run("install", "--json", TSUKU_LLM_MIRROR=place.as_uri())
    assert got.document["data"]["release"] == "b2"


def test_a_sum_is_a_lower_bound_if_a_size_is_not_known(tmp_path: Path) -> None:
    """The embedded metadata has upstream's archives without a size: their sum was told as whole."""
    done = run_program("mirror", str(tmp_path / "m"), "--dry-run", env=environment(tmp_path))
    first, *files = done.stdout.splitlines()
    unknown = any(line.endswith("  ?") for line in files)
    assert (first.count("releases, at least "), first.count("archives, at least ")) == (
        (1, 1) if unknown else (0, 0)
    )


def test_a_damaged_mirror_is_exit_code_5(operator: User, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    assert operator.run("mirror", str(place), "--release", "b1").code == 0
    (archive,) = (place / "sha256").iterdir()
    archive.unlink()
    (place / "notes.txt").write_text("mine")
    found = operator.run("mirror", str(place), "--check")
    assert found.code == 5
    assert "error[tampered-mirror]" in found.stderr
    assert str(archive) in found.stderr
    # Without its options the command would copy the whole repository.
    assert "the command again that made the mirror, with the same options" in found.stderr
    assert f"mirror {place}\n" not in found.stderr
    told = operator.run("mirror", str(place), "--check", "--json").document
    assert told["data"]["intact"] is False
    assert told["data"]["swept"]["foreign"] == ["notes.txt"]


@pytest.mark.parametrize(
    "words", [("--check", "--prune"), ("--check", "--platform", "x"), ("--prune", "--dry-run")]
)
def test_options_that_contradict_each_other(
    operator: User, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert operator.run("mirror", str(tmp_path / "m"), *words).code == 2
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("m", "--to", "oci://127.0.0.1:1/llm"), 2),
        (("--to", "oci://127.0.0.1:1/llm", "--check"), 2),
        (("--to", "oci://127.0.0.1:1/llm", "--prune"), 2),
        (("--to", "https://127.0.0.1:1/llm"), 2),
        (("--to", "oci://127.0.0.1:1/llm", "--dry-run"), 0),
        (("--to", "oci://127.0.0.1:1/llm"), 4),
    ],
    ids=str,
)
def test_a_mirror_has_one_place(operator: User, words: tuple[str, ...], code: int) -> None:
    done = operator.run("mirror", *words, "--json")
    assert done.code == code, done.stderr


def test_a_folder_that_cannot_be_written(operator: User, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = operator.run("mirror", str(tmp_path / "file" / "m"))
    assert (done.code, "Traceback" in done.stderr) == (6, False)
    assert operator.run("mirror", str(tmp_path / "file")).code == 6


@pytest.mark.parametrize(
    ("value", "code"),
    [
        *(("origin", 0), ("https://a.example/,origin", 0), ("oci://h:5000/a/b:tag", 0)),
        *(("ftp://x/", 2), ("origins", 2), ("oci://h/A", 2)),
    ],
)
def test_the_places_of_llm_mirror(operator: User, value: str, code: int) -> None:
    assert operator.run("config", "set", "llm.mirror", value).code == code
