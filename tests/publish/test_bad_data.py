"""What stops the release tool is one line: bad folders, TOML and JSON of every kind."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli
import tomlkit
from support.release_data import (
    copied_data,
    is_one_error,
    keys_of,
    release_tool,
    signers_file,
)
from support.repository import release_document

ROLES = ("root", "targets", "snapshot", "timestamp")
JUNK = {
    "missing": None,
    "empty": b"",
    "torn": b'{"a": [',
    "not utf-8": b"\xff\xfe\x00",
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "deep": b"[" * 100_000,
    "object": b"{}",
}


def own_data(folder: Path) -> Path:
    """A publisher's own folder: a plan and one release file."""
    (folder / "releases").mkdir(parents=True)
    (folder / "releases" / "b1.json").write_text(json.dumps(release_document("b1")))
    role = {"version": 1, "issued": date(2026, 11, 21), "days": 30, "threshold": 1}
    plan = {
        "channels": {"stable": ["b1"]},
        "keys": keys_of("anna"),
        "roles": {name: {**role, "signers": ["anna"]} for name in ROLES},
        "warn": dict.fromkeys(ROLES, 7),
    }
    (folder / "repository.toml").write_text(tomlkit.dumps(plan))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return own_data(tmp_path / "data")


WRITE = ("review", "--write")


def tried(data: Path, command: str = "sign", *arguments: str | Path) -> str:
    """What a command said that must end well or with one line; nothing if it ended well."""
    environ = signers_file(data.parent / "signers.json", "anna")
    into = ("--into", data.parent / "signed")
    done = release_tool(command, *arguments, "--data", data, *into, **environ)
    assert done.returncode == bool(done.stderr)
    if done.stderr:
        assert is_one_error(done.stderr), done.stderr
    return done.stderr


def put(path: Path, content: bytes | None) -> None:
    """Let a file have this content; None removes it."""
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def test_an_own_plan_needs_no_days_of_warning(data: Path) -> None:
    path = data / "repository.toml"
    document = tomlkit.parse(path.read_text())
    del document["warn"]
    path.write_text(tomlkit.dumps(document))
    assert not tried(data)
    signed = data.parent / "signed"
    # A role of 30 days is late in its second half, and not on its first day.
    assert release_tool("check", signed, "--data", data, "--on", "2026-11-22").returncode == 0
    done = release_tool("check", signed, "--data", data, "--on", "2026-12-07")
    assert "every root leads to root 1" in done.stdout
    assert re.match(r"error\[publish\]: sign again: root .14 days left.", done.stderr)


def test_a_folder_without_a_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    said = tried(tmp_path / "own")
    assert "own/repository.toml cannot be read: No such file or directory" in said


@pytest.mark.parametrize("content", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("name", ["repository.toml", "releases/b1.json"])
def test_an_own_junk_file_is_named(data: Path, name: str, content: bytes | None) -> None:
    put(data / name, content)
    assert Path(name).name in tried(data)
    assert not (data.parent / "signed").exists()


@pytest.mark.parametrize("name", ["repository.toml", "releases/b1.json"])
def test_a_folder_in_the_place_of_a_file_is_named(data: Path, name: str) -> None:
    put(data / name, None)
    (data / name).mkdir()
    assert "Is a directory" in tried(data)


def spoiled(document: Any, others: tuple[Any, ...]) -> Iterator[Any]:
    """Copies of a document, each with one value missing or of another kind."""
    for path in paths(document):
        for value in (KeyError, *others):
            changed = copy.deepcopy(document)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if value is KeyError:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield changed


def paths(document: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every value; of a long list or table only to the first two and the last."""
    if isinstance(document, (dict, list)) and document:
        keys = list(document) if isinstance(document, dict) else range(len(document))
        for key in [*keys[:2], keys[-1]] if len(keys) > 9 else keys:
            yield (*before, key)
            yield from paths(document[key], *before, key)


OTHERS = (-1, 10**30, "x", "", [], {}, [None], True)


def test_a_plan_with_any_value_missing_or_of_another_kind_ends_with_one_line(data: Path) -> None:
    path = data / "repository.toml"
    document = tomli.loads(path.read_text())
    others = tuple([1] if value == [None] else value for value in OTHERS)  # TOML has no null
    said = []
    for changed in spoiled(document, others):
        path.write_text(tomlkit.dumps(changed))
        said.append(tried(data, *WRITE, data.parent / "review") or tried(data))
        shutil.rmtree(data.parent / "signed", ignore_errors=True)
    assert sum(map(bool, said)) > len(said) / 2


def test_a_release_file_with_any_value_of_another_kind_ends_with_one_line(data: Path) -> None:
    path = data / "releases" / "b1.json"
    document = json.loads(path.read_text())
    said = []
    for changed in spoiled(document, (*OTHERS, None)):
        path.write_text(json.dumps(changed))
        said.append(tried(data, *WRITE, data.parent / "review"))
    assert sum(map(bool, said)) > len(said) / 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's data, with one release of upstream's and one of a package index."""
    data = copied_data(tmp_path_factory.mktemp("small") / "data")
    path = data / "repository.toml"
    text = re.sub(
        r"(?ms)^stable.*?^index[^\n]*", 'stable = ["b11541"]\nindex = ["b10068"]', path.read_text()
    )
    path.write_text(text)
    return data


FILES = ("rules.toml", "packages.toml", "facts/upstream-releases.json")


@pytest.mark.parametrize("content", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_facts_that_is_junk_is_named(
    small: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    before = (small / name).read_bytes()
    put(small / name, content)
    try:
        assert Path(name).name in tried(small, *WRITE, tmp_path)
    finally:
        (small / name).write_bytes(before)


def test_the_release_files_of_the_small_data_can_be_made(small: Path, tmp_path: Path) -> None:
    assert not tried(small, *WRITE, tmp_path)


def toml(document: Any) -> str:
    return tomlkit.dumps(document)


@pytest.mark.parametrize(
    ("name", "parse", "dump"),
    [
        ("rules.toml", tomli.loads, toml),
        ("packages.toml", tomli.loads, toml),
        ("facts/upstream-releases.json", json.loads, json.dumps),
    ],
)
def test_facts_with_any_value_of_another_kind_end_with_one_line(
    small: Path,
    tmp_path: Path,
    name: str,
    parse: Callable[[str], Any],
    dump: Callable[[Any], str],
) -> None:
    path = small / name
    before = path.read_text()
    document = parse(before)
    if "releases" in document:
        document["releases"] = {"b11541": document["releases"]["b11541"]}
    try:
        said = []
        for number, changed in enumerate(spoiled(document, (1, [1], {}))):
            if number % 9 == 0:
                path.write_text(dump(changed))
                said.append(tried(small, *WRITE, tmp_path))
        assert any(said)
    finally:
        path.write_text(before)


def test_a_record_of_an_archive_that_is_junk_is_named(small: Path, tmp_path: Path) -> None:
    path = min((small / "facts" / "archives").glob("*.json"))
    before = path.read_bytes()
    try:
        for content in JUNK.values():
            if content is not None:
                path.write_bytes(content)
                assert path.name in tried(small, *WRITE, tmp_path)
    finally:
        path.write_bytes(before)


def test_a_revocation_of_a_release_with_a_junk_record_ends_with_one_line(
    small: Path, tmp_path: Path
) -> None:
    facts = json.loads((small / "facts" / "upstream-releases.json").read_text())
    data = shutil.copytree(small, tmp_path / "data")
    for asset in facts["releases"]["b11541"]["assets"]:
        record = data / "facts" / "archives" / f"{asset['sha256']}.json"
        record.write_text('{"listing": {}, "floors": {}, "device_code": {}, "libraries": []}')
    done = release_tool("revoke", "b11541", "--reason", "it leaks", "--data", data)
    assert done.returncode == 1
    assert re.fullmatch(r"error\[publish\]: what .+ has of b11541 .+\n", done.stderr), done.stderr


def test_an_archive_that_no_client_would_accept_is_a_fault_of_the_data(
    small: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(small, tmp_path / "data")
    path = data / "packages.toml"
    path.write_text(re.sub(r'(?m)^sha256 = ".*"', 'sha256 = "x"', path.read_text()))
    done = release_tool("refresh", "b10068", "--from", tmp_path, "--data", data)
    assert done.returncode == 1
    assert re.fullmatch(r"error\[publish\]: b10068: .+\n", done.stderr), done.stderr


# --- the repository that is signed ----------------------------------------------------------------


def test_a_later_root_in_an_empty_folder_is_named(data: Path) -> None:
    """There clients of the first root would find no way to it."""
    path = data / "repository.toml"
    path.write_text(path.read_text().replace("version = 1", "version = 2"))
    said = tried(data)
    assert "signed has no metadata/1.root.json, where clients begin" in said
    assert "set version = 1 of [roles.root]" in said


@pytest.mark.parametrize(
    "words", [("sign", "--raise"), ("resign",), ("rotate", "root=anna")], ids=lambda words: words[0]
)
def test_a_day_so_late_that_no_expiry_can_be_written_ends_with_one_line(
    data: Path, words: tuple[str, ...]
) -> None:
    assert not tried(data)
    assert "after the year 9999" in tried(data, *words, "--issued", "9999-12-31")


@pytest.mark.parametrize("content", [b"", b"junk", b"null", b"{}", b'{"signed": 1}', b"[" * 9999])
@pytest.mark.parametrize("name", ["timestamp", "1.snapshot", "1.targets", "1.root"])
@pytest.mark.parametrize(
    "words", [("sign",), ("sign", "--raise"), ("resign",), ("rotate", "root=anna")]
)
def test_damaged_metadata_in_the_folder_ends_with_one_line(
    data: Path, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    assert not tried(data)
    file = data.parent / "signed" / "metadata" / f"{name}.json"
    file.write_bytes(content)
    assert tried(data, *words)


def test_a_release_that_a_channel_names_and_nothing_describes_is_named(data: Path) -> None:
    path = data / "repository.toml"
    path.write_text(path.read_text().replace('"b1"', '"b2"'))
    assert "releases has no b2.json, which a channel names" in tried(data)


def test_a_folder_that_cannot_be_made_is_one_line(data: Path) -> None:
    (data.parent / "signed").mkdir()
    (data.parent / "signed" / "metadata").write_text("a file is in its place")
    assert "signed" in tried(data)


# --- one content for each version -----------------------------------------------------------------


def edit(data: Path) -> None:
    """Another content than the published one, with no version raised."""
    path = data / "releases" / "b1.json"
    path.write_text(path.read_text().replace('"simulator"', '"another"'))


@pytest.mark.parametrize("way", ["alone", "in_turn"])
def test_T38_other_content_of_a_published_version_gets_no_signature(data: Path, way: str) -> None:
    assert not tried(data)
    edit(data)
    gathered = data.parent / "gathered"
    options = ("--gather", gathered) if way == "in_turn" else ()
    said = tried(data, "sign", *options)
    assert "other content exists under the same version: metadata/1.targets" in said
    assert not list(gathered.glob("metadata/*")), "no signature leaves the holder's machine"
    assert not tried(data, "sign", *options, "--raise")


@pytest.mark.parametrize("way", ["alone", "in_turn"])
def test_T38_an_older_version_than_the_published_gets_no_signature(data: Path, way: str) -> None:
    """A holder whose plan is behind the published repository."""
    plan = (data / "repository.toml").read_text()
    assert not tried(data)
    assert not tried(data, "sign", "--raise")
    (data / "repository.toml").write_text(plan)
    edit(data)
    gathered = data.parent / "gathered"
    options = ("--gather", gathered) if way == "in_turn" else ()
    said = tried(data, "sign", *options)
    assert "targets 1 is planned, and targets 2 is published already: use --raise" in said
    assert not list(gathered.glob("metadata/*"))
