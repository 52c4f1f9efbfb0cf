"""R10: a seed is found wherever it lies, and lies nowhere."""

import base64
import gzip
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from hashlib import shake_128
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from support.release_data import (
    DATA,
    GIVEN_SIGNERS,
    copied_data,
    public_of,
    release_tool,
    signers_file,
)
from support.repository import signer
from support.tools import require_tool

from tsuku_publish.holders.signers import VARIABLE, load_secrets
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.secrets import Finding, search

ROOT = Path(__file__).parents[2]
SEED = bytes(range(0x41, 0x61))
CANARY = {"canary": SEED}


@pytest.fixture
def canary(tmp_path: Path) -> dict[str, str]:
    """The environment of a maintainer whose one signer is the canary."""
    path = tmp_path / "signers.json"
    raw = {"scheme": "ed25519", "seed": SEED.hex(), "public": public_of(SEED.hex())}
    path.write_text(json.dumps({"canary": raw}))
    return {VARIABLE: str(path)}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository with one commit."""
    require_tool("git")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, "README.md", b"Nothing to see.", "Begin")
    return folder


def git(folder: Path, *arguments: str, given: bytes | None = None) -> bytes:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def commit(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)


def scan(repository: Path, canary: dict[str, str], *places: Path) -> tuple[int, str]:
    """Return the exit code and the output of a scan; the output must not have a seed either."""
    done = release_tool("secrets", "--repository", repository, *places, **canary)
    said = done.stdout + done.stderr
    assert not search([("the scan's own output", said.encode())], CANARY)[0]
    assert "Traceback" not in said
    return done.returncode, said


# --- the encodings of a seed ---------------------------------------------------------------


def pem(seed: bytes) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "bytes": lambda seed: seed,
    "hexadecimal": lambda seed: seed.hex().encode(),
    "capitals": lambda seed: seed.hex().upper().encode(),
    "base64": base64.b64encode,
    "base64 for URLs": base64.urlsafe_b64encode,
    "base64 of digits": lambda seed: base64.b64encode(seed.hex().encode()),
    "PEM": pem,
    "first half": lambda seed: seed[:16].hex().encode(),
    "last half": lambda seed: base64.b64encode(seed[16:]),
    "gzip": lambda seed: gzip.compress(seed.hex().encode()),
    "JSON": lambda seed: json.dumps({"seed": seed.hex()}).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", [b"", b"x", b"xy"], ids=len)
def test_R10_a_seed_is_found_in_every_encoding(form: str, before: bytes) -> None:
    for seed in (SEED, random.Random(7).randbytes(32)):  # noqa: S311 - a canary
        written = FORMS[form](seed)
        padded = before + written + b" and more" if form != "gzip" else written
        found, _ = search([("here", padded)], {"canary": seed})
        assert {each.signer for each in found} == {"canary"}


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=9), st.binary(max_size=9))
def test_R10_a_seed_is_found_inside_a_base64_text(seed: bytes, before: bytes, after: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for half in (seed[:16], seed[16:]):
            written = encode(before + half + after)
            assert search([("here", written)], {"canary": seed})[0]


@given(st.binary(max_size=400))
def test_other_bytes_are_not_a_seed(data: bytes) -> None:
    assert search([("here", data)], CANARY)[0] == []


def zipped(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def test_R10_nested_archives_are_opened() -> None:
    inner = zipped("tsuku_llm/manifests/seed.txt", SEED.hex().encode())
    outer = tarred("dist/one.whl", inner)
    place = "sdist: unpacked: dist/one.whl: tsuku_llm/manifests/seed.txt"
    assert search([("sdist", outer)], CANARY)[0] == [Finding("canary", place)]


@pytest.mark.parametrize("head", [b"\x1f\x8b", b"PK\x03\x04", bytes(257) + b"ustar"])
def test_a_damaged_archive_is_a_file_like_any_other(head: bytes) -> None:
    assert search([("here", head + SEED + bytes(600))], CANARY)[0] == [Finding("canary", "here")]


# --- where it may lie ---------------------------------------------------------------------


def test_a_clean_repository_passes(repository: Path, canary: dict[str, str]) -> None:
    code, said = scan(repository, canary)
    assert (code, said) == (0, "no private key, and none of 1 signers, is in 4 files and objects\n")


def test_R10_in_an_uncommitted_file(repository: Path, canary: dict[str, str]) -> None:
    (repository / "notes.txt").write_text(f"seed: {SEED.hex()}")
    code, said = scan(repository, canary)
    assert code == 1
    assert said.startswith("canary: notes.txt\nerror[publish]: ")


def test_R10_in_the_history(repository: Path, canary: dict[str, str]) -> None:
    commit(repository, "notes.txt", SEED.hex().encode(), "Add notes")
    (repository / "notes.txt").unlink()
    commit(repository, "README.md", b"Nothing to see at all.", "Remove notes")
    code, said = scan(repository, canary)
    assert code == 1
    assert said.startswith("canary: git's blob ")


def test_R10_in_a_message_a_stash_or_an_unreachable_commit(
    repository: Path, canary: dict[str, str]
) -> None:
    commit(repository, "README.md", b"Nothing.", f"Rotate {SEED.hex()}")
    assert scan(repository, canary)[1].startswith("canary: git's commit ")
    git(repository, "reset", "-q", "--hard", "HEAD^")
    assert scan(repository, canary)[0] == 1, "the commit is still there"


def test_R10_in_a_packed_history(repository: Path, canary: dict[str, str]) -> None:
    commit(repository, "keys.bin", SEED, "Add a file")
    commit(repository, "keys.bin", SEED[:8], "Change it")
    git(repository, "gc", "-q", "--aggressive", "--prune=now")
    code, said = scan(repository, canary)
    assert code == 1
    assert "git's blob" in said


def test_R10_in_a_wheel_an_sdist_or_a_log(
    repository: Path, canary: dict[str, str], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    wheel, sdist = tmp_path / "one.whl", tmp_path / "one.tar.gz"
    wheel.write_bytes(zipped("tsuku_llm/x.py", b'SEED = "' + SEED.hex().encode() + b'"'))
    sdist.write_bytes(tarred("one/tests/x.py", base64.b64encode(SEED)))
    (logs / "job.log").write_text(f"signing with {SEED.hex()}")
    for place, said in (
        (wheel, "canary: one.whl: tsuku_llm/x.py"),
        (sdist, "canary: one.tar.gz: unpacked: one/tests/x.py"),
        (logs, "canary: job.log"),
    ):
        found = scan(repository, canary, place)
        assert found[0] == 1
        assert said in found[1].splitlines()


def test_R10_in_the_built_wheel_and_sdist(canary: dict[str, str], tmp_path: Path) -> None:
    """A seed in a module reaches the sdist and the wheel, and is found in both."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    with (source / "installer" / "tsuku_llm" / "_version.py").open("a") as module:
        module.write(f"# {SEED.hex()}\n")
    done = release_tool("secrets", "--build", "--repository", source, **canary)
    places = done.stdout.replace("canary: ", "").splitlines()
    assert "installer/tsuku_llm/_version.py" in places
    assert any(".whl: tsuku_llm/_version.py" in place for place in places)
    assert any(".tar.gz: unpacked: " in place for place in places)


# --- and does not -------------------------------------------------------------------------


def test_R10_no_command_prints_a_seed(tmp_path: Path) -> None:
    """Signing, rotating, failing in each way: nothing of a seed is said or written."""
    data, into, home = (tmp_path / name for name in ("data", "manifests", "home"))
    copied_data(data, "anna", "ben", "chris")
    home.mkdir()
    everybody = {name for role in load_plan(DATA).roles.values() for name in role.signers}
    people = {"anna", "ben", "chris"}
    options = ("--data", data, "--into", into)
    said = b""
    for number, (command, names) in enumerate(
        (
            (("sign",), everybody),
            (("sign", "--raise"), everybody - {"targets-1"}),
            (("sign", "--raise"), everybody),
            (("resign",), {"online-1"}),
            (("resign",), {"root-1"}),
            (("rotate", "root=anna,ben,chris"), everybody | people),
            (("rotate", "root=anna,ben"), everybody | people),
        )
    ):
        environ = signers_file(home / f"{number}.json", *names)
        done = release_tool(*command, *options, **environ)
        said += (done.stdout + done.stderr).encode()
    for change in ({"scheme": "rsa"}, {"public": "0" * 64}, {"seed": "0"}):
        done = release_tool("sign", *options, **signers_file(home / "bad.json", **change))
        said += (done.stdout + done.stderr).encode()
        assert done.returncode == 1
    seeds = {name: signer(name)._private_key.private_bytes_raw() for name in everybody | people}
    written = [(str(path), path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]
    found, _ = search([("said", said), *written], seeds)
    assert {Path(each.place).parent for each in found} == {home}, "the signers' own files"


def test_R10_no_seed_of_the_signers_is_in_this_repository_or_what_it_builds() -> None:
    if not GIVEN_SIGNERS:
        pytest.skip(f"{VARIABLE} names no file of signers, so no seed is known")
    done = release_tool("secrets", "--repository", ROOT, "--build", **{VARIABLE: GIVEN_SIGNERS})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no private key, and none of 7 signers, is in ")


def test_without_signers_the_usual_forms_are_found(repository: Path) -> None:
    assert VARIABLE not in os.environ
    code, said = scan(repository, {})
    assert (code, said.endswith("; TSUKU_LLM_SIGNERS names no signers\n")) == (0, True), said
    commit(repository, "key.pem", pem(SEED), "Add a key")
    code, said = scan(repository, {})
    assert code == 1
    assert "a private key in PEM: key.pem\n" in said
    assert "a private key in PEM: git's blob" in said


def private_pem(key: Any, password: bytes | None, form: PrivateFormat) -> bytes:
    how = BestAvailableEncryption(password) if password else NoEncryption()
    made: bytes = key.private_bytes(Encoding.PEM, form, how)
    return made


KINDS = ("Ed25519", "P-256", "P-256 that begins with zeros", "P-384", "RSA")
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}
FORMATS = {
    "PKCS8": PrivateFormat.PKCS8,
    "traditional": PrivateFormat.TraditionalOpenSSL,
    "OpenSSH": PrivateFormat.OpenSSH,
}
ENCRYPTED = b"correct horse"
BLOCKS = [
    (kind, form, password)
    for kind in KINDS
    for form in FORMATS
    for password in (None, ENCRYPTED)
    if (kind, form) != ("Ed25519", "traditional") and (form, password) != ("OpenSSH", ENCRYPTED)
]


@cache
def key_of(kind: str) -> Any:
    if kind == "RSA":
        return rsa.generate_private_key(65537, 3072)
    if kind == "Ed25519":
        return Ed25519PrivateKey.from_private_bytes(SEED)
    if kind not in CURVES:
        # One key of 256 has such a byte, one of 65,536 has two.
        return ec.derive_private_key(int.from_bytes(b"\0\0" + SEED[2:], "big"), CURVES["P-256"])
    return ec.generate_private_key(CURVES[kind])


@pytest.mark.parametrize(("kind", "form", "password"), BLOCKS)
def test_private_keys_of_every_kind_are_found_in_pem(
    kind: str, form: str, password: bytes | None
) -> None:
    block = private_pem(key_of(kind), password, FORMATS[form])
    forms = (block, block.replace(b"\n", b"\r\n"), json.dumps({"key": block.decode()}).encode())
    for written in (*forms, b"x" + block + b"y", gzip.compress(block)):
        found, _ = search([("here", written)], {})
        assert [each.signer for each in found] == ["a private key in PEM"]
    cut = search([("here", block[: len(block) // 2])], {})[0]
    assert cut == [], "half a block is only known of a signer at hand"


@pytest.mark.parametrize(
    ("kind", "form", "password"), [each for each in BLOCKS if each[1] != "OpenSSH"]
)
def test_half_a_file_of_a_signer_is_found(
    kind: str, form: str, password: bytes | None, tmp_path: Path
) -> None:
    block = private_pem(key_of(kind), password, FORMATS[form])
    path = tmp_path / "anna.pem"
    path.write_bytes(block)
    secrets = load_secrets({VARIABLE: str(path)})
    assert [*secrets] == ["anna"]
    assert len(secrets["anna"]) == 32
    body = b"".join(line for line in block.splitlines() if b":" not in line and b"-" not in line)
    for written in (base64.b64decode(body), b"copied " + body, for_urls(body)):
        assert Finding("anna", "here") in search([("here", written)], secrets)[0]


def for_urls(text: bytes) -> bytes:
    """The same base64 in the other alphabet: both letters differ, and no text has a mixture."""
    return text.translate(bytes.maketrans(b"+/", b"-_"))


def test_a_signer_is_found_in_both_alphabets_whichever_letters_it_has() -> None:
    seeds = [shake_128(b"%d" % number).digest(32) for number in range(400)]
    # Both halves of some have both letters that the alphabets differ in.
    seeds += [(b"\xfb\xef\xbe\xff\xff" * 7)[:32], (b"\xff\xff\xff\xfb\xef\xbe" * 6)[:32]]
    halves = [[base64.b64encode(half) for half in (seed[:15], seed[18:])] for seed in seeds]
    assert any(all(b"+" in half and b"/" in half for half in both) for both in halves)
    for seed in seeds:
        text = base64.b64encode(b"before" + seed + b"after")
        for written in (text, for_urls(text)):
            assert search([("here", written)], {"anna": seed})[0] == [Finding("anna", "here")]


def test_public_keys_and_examples_are_no_finding(tmp_path: Path) -> None:
    public = [
        key_of(kind).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for kind in KINDS
    ]
    raw = [base64.b64decode(b"".join(each.splitlines()[1:-1])) for each in public]
    texts = [
        *public,
        *raw,
        f'anna = "{public_of(SEED.hex())}"'.encode(),
        json.dumps({"scheme": "ed25519", "public": public_of(SEED.hex())}).encode(),
        b"-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        b"-----BEGIN PRIVATE KEY-----" + b"the key in base64 " * 9 + b"-----END PRIVATE KEY-----",
        b'"seed": "42", "seed": -1',
        b"pkcs11:token=anna;id=%02?module-path=/usr/lib/softhsm/libsofthsm2.so",
        b"a URI has no pin-value: others can see it",
        shake_128(b"anything").digest(10_000),
    ]
    for kind in KINDS:
        path = tmp_path / f"{kind}.pem"
        path.write_bytes(private_pem(key_of(kind), None, PrivateFormat.PKCS8))
        path.chmod(0o600)
    known = load_secrets({VARIABLE: str(tmp_path)})
    assert {*known} == {*KINDS}
    for number, text in enumerate(texts):
        assert search([("here", text)], known)[0] == [], number


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ({"anna": {"scheme": "ed25519", "seed": SEED.hex()}}, "a seed of a signer"),
        ({"uri": "pkcs11:token=anna;id=%02?pin-value=123456"}, "a PIN in a pkcs11: URI"),
        ({"uri": "pkcs11:id=%02?module-path=/x.so&pin-value=horse%20staple"},
         "a PIN in a pkcs11: URI"),
    ],
)  # fmt: skip
def test_other_secrets_of_anybody_are_found(text: dict[str, Any], form: str) -> None:
    for written in (
        json.dumps(text),
        json.dumps(text, indent=1),
        repr(text),
        json.dumps(str(text)),
    ):
        assert [each.signer for each in search([("here", written.encode())], {})[0]] == [form]


@pytest.mark.parametrize(
    "start", [b"-----BEGIN PRIVATE KEY-----", b"pkcs11:a", b"&pin-value=123456", b'"seed": "']
)
def test_the_search_takes_time_in_proportion(start: bytes) -> None:
    """A hostile log of many beginnings: the suite's own limit of time would be passed."""
    assert search([("here", start * 20_000)], {})[0] == []


def test_a_folder_without_a_readable_history_is_one_line(
    tmp_path: Path, canary: dict[str, str]
) -> None:
    require_tool("git")
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / ".git").write_text("nowhere")
    code, said = scan(tmp_path / "no", canary)
    assert code == 1
    assert "git could not list the objects" in said
