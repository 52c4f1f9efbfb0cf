"""Every place that reads what others made, with everything that others can put there.

A place is a file that a function reads, or an answer that it gets. Nothing may block, take more
memory than the machine has, or end with another error than one of ours.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from support.model_shelves import ollama_model, small_model

from tsuku_llm import fetch
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.config import file as config_file
from tsuku_llm.config.tool_files import add_to_file
from tsuku_llm.fetch.artifacts.partial import PartialFile, verified
from tsuku_llm.fetch.http.registry_login import Challenge, _token, credentials_of
from tsuku_llm.fetch.http.tls import client_context
from tsuku_llm.fetch.places.bundle_file import opened_bundle
from tsuku_llm.fetch.places.mirrors import ROOT, TITLE, RegistryPlace, parse_manifest
from tsuku_llm.fetch.places.model_packages import _part_in, _read_head
from tsuku_llm.fetch.places.pip_index import _chunks
from tsuku_llm.ground import records
from tsuku_llm.ground.errors import DownloadError, TsukuError
from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.processes.driver_child import _message
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.log import read_log
from tsuku_llm.launch.ask.canary import read_slots
from tsuku_llm.launch.ask.chat import read_event
from tsuku_llm.launch.ask.health import api_key
from tsuku_llm.launch.ask.speed import server_message
from tsuku_llm.launch.compute.canary_answer import read_completion, read_embedding
from tsuku_llm.launch.compute.judging import NotTold, parse_answer
from tsuku_llm.launch.failed.failure import wrong_file
from tsuku_llm.launch.gpu.nvml import parse_memory, parse_watched
from tsuku_llm.launch.gpu.proc import _is_gguf
from tsuku_llm.launch.memory.gguf import read_header, read_layout
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.upstream_config import configured
from tsuku_llm.launch.plan.wishes import wishes_in
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.model_caches.finding import find_models
from tsuku_llm.model_caches.places import FOLDER, LLAMA_CPP, OLLAMA, ModelPlace, places_of
from tsuku_llm.steps.install.from_source import _progress
from tsuku_llm.steps.report.bench import _checked
from tsuku_llm.store.records.updates import MARKS, read_marks
from tsuku_llm.trust import decode_json
from tsuku_operator.bundle.bundle import _given_wheel
from tsuku_operator.mirror.registry_mirror import of_file
from tsuku_publish.archives.binaries import needs_of
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.errors import content_of
from tsuku_publish.feed.state import STATE, load_settings, load_state
from tsuku_publish.holders.keys import load_public_keys
from tsuku_publish.holders.passphrases import read_closed
from tsuku_publish.packing.draft import Draft
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.release_files.promoted import load_promoted
from tsuku_publish.release_files.releases import _load_own
from tsuku_publish.release_files.revoked import load_revoked
from tsuku_publish.release_files.sightings import load_sightings
from tsuku_publish.repository.copies import RepositoryFolder, WheelCopy
from tsuku_publish.upstream.attestations import bundles_in, stored
from tsuku_publish.upstream.classify import load_rules
from tsuku_publish.upstream.facts import Facts
from tsuku_publish.upstream.hosting import parse_release
from tsuku_publish.upstream.makers import load_makers
from tsuku_publish.upstream.source.cmake import PRESETS, preset
from tsuku_publish.upstream.source.facts import load_sources
from tsuku_publish.upstream.source.tree import RELEASE, SourceTree, open_source

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes, /proc, and alarms")

INSTALLER = Path(__file__).parents[2] / "installer"
ARTIFACT = Artifact(url="https://h.example/x.tar.gz", sha256="a" * 64, size=3, format="tar.gz")
REGISTRY = RegistryPlace("h.example", "n")


# --- the places ------------------------------------------------------------------------------


class Place(NamedTuple):
    """A file that a module reads: where it is below a folder, and the call that reads it.

    ``raises`` are errors that the function is documented to raise, and its callers to handle.
    """

    module: str
    at: str
    call: Callable[[Path], object]
    raises: tuple[type[Exception], ...] = ()


def models_beside(source: str, folder: str = "") -> Callable[[Path], object]:
    """Find the models of a place; a good one that is beside the bad file must be found."""

    def find(below: Path) -> object:
        place = below / folder
        if source == OLLAMA:
            ollama_model(place, "good:1b")
        else:
            small_model(place / "good.gguf")
        found = find_models([ModelPlace(source, str(place))])
        assert any("good" in model.name for model in found.models), found
        return found

    return find


def get_file(below: Path) -> object:
    with fetch.Network({}) as network:
        return fetch.get((below / "mirror/file").as_uri(), 1000, network)


def lm_studio(below: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(below))
        places = places_of({}, ())
    assert places  # those of the other programs are there in any case
    return find_models(places)


def record_of(below: Path) -> object:
    return Instances(below).all(), Instances(below).damaged()


def bundle(below: Path) -> object:
    with opened_bundle(below / "bundle.run") as file:
        return file.sizes


FILES = [
    Place(
        "model_caches.finding", "manifests/registry.ollama.ai/library/a/b", models_beside(OLLAMA)
    ),
    Place("model_caches.finding", "manifest=a=b=c.json", models_beside(LLAMA_CPP)),
    Place("model_caches.finding", "models--a--b/refs/main", models_beside(LLAMA_CPP)),
    Place("model_caches.files", "x.gguf", models_beside(FOLDER)),
    Place("model_caches.files", "deep/x.gguf.part", models_beside(FOLDER)),
    Place("model_caches.places", ".lmstudio/settings.json", lm_studio),
    Place("model_caches.finding", ".lmstudio-home-pointer", lm_studio),
    Place(
        "launch.memory.gguf",
        "m.gguf",
        lambda at: read_header(str(at / "m.gguf")),
        (OSError, ValueError),
    ),
    Place("launch.memory.gguf", "m.gguf", lambda at: read_layout(str(at / "m.gguf"))),
    Place(
        "launch.plan.upstream_config",
        "llama.cpp/config.ini",
        lambda at: configured({"XDG_CONFIG_HOME": str(at)}, ("-c, --ctx-size N   (env: X)",)),
    ),
    Place(
        "launch.failed.failure",
        "m.gguf",
        lambda at: wrong_file(LaunchPlan(("llama-server", "-m", "m.gguf"), at, {}, "cpu")),
    ),
    Place("launch.gpu.proc", "m.gguf", lambda at: _is_gguf(str(at / "m.gguf"))),
    Place(
        "launch.ask.health",
        "keys",
        lambda at: api_key(wishes_in(["--api-key-file", str(at / "keys")], {})),
        (OSError,),
    ),
    Place(
        "fetch.http.registry_login",
        "config.json",
        lambda at: credentials_of(REGISTRY.api, {"DOCKER_CONFIG": str(at)}),
    ),
    Place(
        "fetch.http.registry_login",
        "auth.json",
        lambda at: credentials_of(REGISTRY.api, {"REGISTRY_AUTH_FILE": str(at / "auth.json")}),
    ),
    Place(
        "tsuku_operator.mirror.registry_mirror",
        "file",
        lambda at: next(of_file(at / "file", "a").chunks(), b""),
    ),
    Place("fetch.places.small_files", "mirror/file", get_file),
    Place("fetch.places.model_packages", "x.whl", lambda at: _read_head("x", at / "x.whl")),
    Place("fetch.places.model_packages", "x.whl", lambda at: [*_part_in(at / "x.whl", "x")]),
    Place("fetch.places.pip_index", "x.whl", lambda at: next(_chunks(at / "x.whl"), b"")),
    Place("fetch.artifacts.partial", "a" * 64, lambda at: verified(at / ("a" * 64), ARTIFACT)),
    Place("fetch.places.bundle_file", "bundle.run", bundle),
    Place(
        "fetch.http.tls", "ca.pem", lambda at: client_context({"SSL_CERT_FILE": str(at / "ca.pem")})
    ),
    Place("config.file", "config.toml", lambda at: config_file.read(at / "config.toml")),
    Place("config.tool_files", "s.json", lambda at: add_to_file(at / "s.json", '{"a": {"b": 1}}')),
    Place("machine.snapshot", "machine.json", lambda at: ReplayHost.load(at / "machine.json")),
    Place("instances.log", "x.log", lambda at: next(read_log(at / "x.log"), b""), (OSError,)),
    Place("instances.log", "x.log.1", lambda at: next(read_log(at / "x.log"), b""), (OSError,)),
    Place("ground.records", "servers/default.json", record_of),
    Place("ground.records", MARKS, read_marks),
    Place("steps.report.bench", "m.gguf", lambda at: _checked(at / "m.gguf")),
    Place(
        "tsuku_operator.bundle.bundle",
        "w-1-py3-none-any.whl",
        lambda at: _given_wheel(at / "w-1-py3-none-any.whl"),
    ),
    Place("steps.install.from_source", "log", lambda at: _progress(at / "log", 0)),
    Place(
        "tsuku_publish.upstream.attestations",
        "facts/attestations/b1.jsonl",
        lambda at: stored(at, "b1"),
        (OSError,),
    ),
    Place("tsuku_publish.archives.binaries", "x.so", lambda at: needs_of(at / "x.so"), (OSError,)),
    Place("tsuku_publish.upstream.classify", "rules.toml", load_rules),
    Place("tsuku_publish.upstream.makers", "makers.toml", load_makers),
    Place(
        "tsuku_publish.upstream.source.facts",
        "facts/sources/b1.json",
        lambda at: load_sources(at / "facts"),
    ),
    Place("tsuku_publish.upstream.source.tree", RELEASE, open_source),
    Place(
        "tsuku_publish.upstream.source.tree", "x.tar.gz", lambda at: open_source(at / "x.tar.gz")
    ),
    Place(
        "tsuku_publish.archives.contents",
        "contents/x.json",
        lambda at: load_contents(at / "contents"),
    ),
    Place("tsuku_publish.repository.copies", "x", lambda at: RepositoryFolder(at).read("x")),
    Place("tsuku_publish.repository.copies", "x.whl", lambda at: WheelCopy.of(at / "x.whl")),
    Place(
        "tsuku_publish.upstream.facts",
        "facts/upstream-releases.json",
        lambda at: Facts(at / "facts"),
    ),
    Place("tsuku_publish.feed.state", "rules.toml", load_settings),
    Place("tsuku_publish.feed.state", STATE, load_state),
    Place("tsuku_publish.holders.keys", "k.toml", lambda at: load_public_keys([at / "k.toml"])),
    Place("tsuku_publish.packing.draft", "r.json", lambda at: Draft.read(at / "r.json")),
    Place(
        "tsuku_publish.holders.passphrases",
        "p",
        lambda at: read_closed(at / "p", "V", closed=False),
    ),
    Place("tsuku_publish.release_files.plan", "repository.toml", load_plan),
    Place(
        "tsuku_publish.errors", "promoted.json", lambda path: load_promoted(path, content_of(path))
    ),
    Place(
        "tsuku_publish.release_files.releases",
        "releases/b1.json",
        lambda at: _load_own(at / "releases"),
    ),
    Place(
        "tsuku_publish.release_files.revoked",
        "revoked.json",
        lambda path: load_revoked(path, content_of(path)),
    ),
    Place("tsuku_publish.errors", "s.json", lambda at: load_sightings(at / "s.json")),
]


class AnswerPlace(NamedTuple):
    """A function that reads what another program or host has said."""

    module: str
    call: Callable[[bytes], object]
    raises: tuple[type[Exception], ...] = ()


def presets(data: bytes) -> object:
    file = {PRESETS[0]: data.decode("utf-8", "replace")}
    return preset(SourceTree(file, None), "x", "release.yml:1")


def token_of(data: bytes) -> object:
    return _token(Challenge("bearer", "https://h.example/t", "", ""), None, lambda *_: data)


def layer_of(data: bytes) -> object:
    """Read a manifest whose one layer has a size, an annotation or a digest of others."""
    value = data.decode("utf-8", "replace") or "null"
    text = (
        f'{{"artifactType": "x", "annotations": {{"{ROOT}": {value}}}, "layers": [{{"digest": '
        f'"sha256:{"a" * 64}", "size": {value}, "annotations": {{"{TITLE}": "x"}}}}]}}'
    )
    return parse_manifest(text.encode(), REGISTRY)


ANSWERS = [
    AnswerPlace("fetch.places.mirrors", lambda data: parse_manifest(data, REGISTRY)),
    AnswerPlace("fetch.places.mirrors", layer_of),
    AnswerPlace("fetch.http.registry_login", token_of),
    AnswerPlace("trust.metadata", decode_json, (ValueError,)),
    AnswerPlace("ground.records", lambda data: records.parse(data, records.mapping), (ValueError,)),
    AnswerPlace("ground.processes.driver_child", lambda data: _message(data, ("nvml",))),
    AnswerPlace("launch.gpu.nvml", lambda data: parse_watched(data.decode("utf-8", "replace"))),
    AnswerPlace("launch.gpu.nvml", lambda data: parse_memory(data.decode("utf-8", "replace"))),
    AnswerPlace("launch.ask.speed", server_message),
    AnswerPlace("launch.ask.chat", lambda data: [*read_event(data)], (ValueError,)),
    AnswerPlace("launch.ask.canary", read_slots),
    AnswerPlace("launch.compute.canary_answer", read_completion),
    AnswerPlace("launch.compute.canary_answer", read_embedding),
    AnswerPlace("launch.compute.judging", parse_answer, (NotTold,)),
    AnswerPlace(
        "steps.servers.background", lambda data: parse_object(data, ours=True), (ValueError,)
    ),
    AnswerPlace("tsuku_publish.upstream.attestations", bundles_in),
    AnswerPlace("tsuku_publish.upstream.source.cmake", presets),
    AnswerPlace("tsuku_publish.upstream.hosting", lambda data: parse_release(data, "b1")),
]

ELSEWHERE = {
    "steps.metadata.repository": "tests/cli/test_repository.py; the first check is the fingerprint",
    "ground.processes.children": "``answer``, with the answer's reader",
    "tsuku_operator.bundle.bundle": "a wheel that pip has just verified",
    "steps.program.renewed": "the settings of this program's own environment",
    "steps.program.self_update": "the lock in a wheel that pip has just verified",
    "steps.serve.short_start": "a temporary file of our own, of which the end is read",
    "tsuku_operator.bundle.own_wheel": "the files of this program's own installation",
    "steps.install.own_build": "tests/steps/test_own_build.py",
    "steps.install.build_version": "a value that this program has just encoded",
    "steps.program.copy_facts": "the record of this program's own installation",
    "store.layout": "tests/store/test_foreign_files.py",
    "tsuku_publish.secrets": "the publisher's own repository",
    "tsuku_publish.signing.review": "verified files of a repository",
    "tsuku_publish.repository.folder": "a repository that is verified then",
    "tsuku_publish.repository.wheel": "a wheel that the publisher made",
    "tsuku_publish.release_files.packages": "rules.toml, as above",
    "tsuku_publish.holders.signers": "a file of keys, which ``passphrases`` has read",
    "tsuku_publish.cli.data": "files that the publisher names, with ``reading``",
    "tsuku_publish.feed.run": "verified files of a repository",
    "tsuku_publish.feed.taking": "an answer that ``hosting`` has checked",
    "tsuku_publish.packing.measuring": "files that the publisher has unpacked",
    "tsuku_publish.packing.pack": "an archive that was just written or downloaded",
    "tsuku_publish.packing.tree": "files of a build that the publisher names",
    "tsuku_publish.building.bases": "a base whose digest was verified",
    "tsuku_publish.building.compiling": "notes of an earlier build of the same publisher",
    "tsuku_publish.building.newer": "the same",
    "tsuku_publish.building.place": "the same",
    "tsuku_publish.building.source": "a source that the publisher named",
}
"""The other modules that use the reader, and where or why that is enough."""


# --- what others put there -------------------------------------------------------------------


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def giant_model(path: Path) -> None:
    """A sparse file that says of itself to have four million keys and as many tensors."""
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, 1 << 22, 1 << 22))
        file.truncate(1 << 33)


def zip_of_nothing(path: Path) -> None:
    path.write_bytes(b"PK\5\6" + b"\xff" * 18)


SPOILED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "memory of a process": lambda path: path.symlink_to("/proc/self/mem"),
    "log of the kernel": lambda path: path.symlink_to("/proc/kmsg"),
    "file of sysfs": lambda path: path.symlink_to("/sys/kernel/mm/transparent_hugepage/enabled"),
    "giant": giant,
    "giant model": giant_model,
    "zip": zip_of_nothing,
}

DEEP = 100_000
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"layers":' * DEEP + b"1" + b"}" * DEEP,
    "deep table": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "lone surrogate": b'{"downloadsFolder": "/\\ud800", "layers": [{"digest": "\\udc00"}]}',
    "NUL": b'{"downloadsFolder": "/a\\u0000b", "auths": {"h.example": {"auth": "\\u0000"}}}',
    "NUL in a path": b"/a\0b",
    "null": b"null",
    "nulls": b'{"downloadsFolder": null, "layers": null, "auths": null, "ggufFile": null,'
    b' "annotations": null, "token": null, "releases": null, "assets": null, "ask": null}',
    "null layers": b'{"layers": [null], "auths": {"h.example": null}, "devices": [null]}',
    "number": b"1",
    "text": b'"text"',
    "list": b"[[], {}, null]",
    "2^63": b'{"layers": 9223372036854775808, "format": 9223372036854775808, "size": 1e308}',
    "only 2^63": b"9223372036854775808",
    "1e999": b'{"size": 1e999, "format": 1e999}',
    "only 1e999": b"1e999",
    "long number": b"9" * 100_000,
    "NaN": b'{"format": NaN, "devices": [{"total": NaN}]}',
    "key twice": b'{"format": 1, "format": 2}',
    "wrong types": b'{"layers": {"a": 1}, "auths": [], "credHelpers": 3, "credsStore": [],'
    b' "ggufFile": 4, "format": "1", "system": [], "devices": 7, "attestations": 8,'
    b' "tag_name": {}, "assets": "x", "signed": {}, "error": {"message": {}}}',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "NULs": bytes(5000),
    "one line": b"a" * 200_000,
    "GGUF of 2^63 keys": struct.pack("<4sIQQ", b"GGUF", 3, 1 << 63, 1 << 63) + bytes(64),
}


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """End a read that hangs or never ends: without this, the whole run or machine would."""

    def over(_: int, __: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, over)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, memory[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def names(places: list[Place] | list[AnswerPlace]) -> list[str]:
    return [f"{number}-{place.module}" for number, place in enumerate(places)]


@pytest.mark.parametrize("place", FILES, ids=names(FILES))
@pytest.mark.parametrize("spoiled", [*SPOILED, *TEXTS])
def test_N06_a_file_of_others_gives_an_answer_or_one_of_our_errors(
    place: Place, spoiled: str, tmp_path: Path
) -> None:
    path = tmp_path / place.at
    path.parent.mkdir(parents=True, exist_ok=True)
    if spoiled in TEXTS:
        path.write_bytes(TEXTS[spoiled])
    else:
        SPOILED[spoiled](path)
    with no_longer_than(20), suppress(TsukuError, *place.raises):
        place.call(tmp_path)


@pytest.mark.parametrize("place", ANSWERS, ids=names(ANSWERS))
@pytest.mark.parametrize("said", TEXTS)
def test_N06_an_answer_of_others_gives_a_value_or_one_of_our_errors(
    place: AnswerPlace, said: str
) -> None:
    with no_longer_than(20), suppress(TsukuError, *place.raises):
        place.call(TEXTS[said])


READERS = {"open_foreign", "read_foreign", "read_text", "read_beginning", "read_end"}
READERS |= {"read_answer", "answer", "parse_json", "parse_object"}


def users_of_the_reader() -> set[str]:
    found = set()
    for package in ("tsuku_llm", "tsuku_operator", "tsuku_publish"):
        for path in (INSTALLER / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                of_it = (
                    isinstance(node, ast.ImportFrom) and node.module == "tsuku_llm.ground.foreign"
                )
                if of_it and {each.name for each in node.names} & READERS:  # type: ignore[attr-defined]
                    name = path.relative_to(INSTALLER).with_suffix("").as_posix()
                    found.add(name.replace("/", ".").removeprefix("tsuku_llm."))
    return found


def test_N06_every_module_that_reads_has_its_place_here() -> None:
    listed = {place.module for place in [*FILES, *ANSWERS]}
    assert users_of_the_reader() == listed | set(ELSEWHERE)


# --- single rows -----------------------------------------------------------------------------


def test_N06_a_realm_that_is_no_url_is_one_of_our_errors() -> None:
    for realm in ("https://[::1", "https://[::1?a=b", "https://h:port/", "https://\ud800/", ""):
        # The question itself refuses what is no URL: so the answer is none here.
        with pytest.raises(DownloadError):
            _token(Challenge("bearer", realm, "s", ""), None, lambda *_: b"")


def test_N06_a_size_that_is_none_is_no_mirror_of_ours() -> None:
    for size in ("1e999", "-1", '"3"', "null", "true", "1.5", "9223372036854775808", "[]"):
        with pytest.raises(DownloadError, match="is not a mirror that tsuku-llm made"):
            layer_of(size.encode())


def test_N06_a_note_of_a_download_is_read_only_if_it_is_a_file(tmp_path: Path) -> None:
    for spoil in SPOILED.values():
        part = tmp_path / f"{len(list(tmp_path.iterdir()))}.part"
        spoil(part.with_name(f"{part.name}.json"))
        file = PartialFile(part, -1)
        with no_longer_than(20):
            assert file.validator("https://h.example/x.tar.gz") is None
