"""Signers in encrypted files and in tokens: what opens them, and what never shows."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from securesystemslib.signer import (  # type: ignore[attr-defined]
    SIGNER_FOR_URI_SCHEME,
    CryptoSigner,
    Key,
    SecretsHandler,
    Signature,
    Signer,
)
from support.program import PUBLISHER, environment
from support.release_data import release_tool, seed_of, signers_file
from support.softhsm import PIN, Tokens, softhsm
from support.tools import missing, open_terminal

from tsuku_publish.errors import PublishError
from tsuku_publish.holders import passphrases, signers

SECRET = "correct horse battery"
WRONG = "wrong horse battery"


def never(question: str) -> str:
    raise AssertionError(question)


def encrypted(path: Path, name: str = "anna") -> Path:
    signers.make_signer(name, path, SECRET)
    return path


def foreign(path: Path, private: object, passphrase: str | None = None) -> Path:
    """A PEM file as openssl writes it: the private key alone."""
    how = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)  # type: ignore[attr-defined]
    path.touch(0o600)
    path.write_bytes(pem)
    return path


def loaded(*paths: Path, **environ: str) -> dict[str, Signer]:
    named = os.pathsep.join(map(str, paths))
    return signers.load_signers({signers.VARIABLE: named, **environ})


# --- encrypted files ------------------------------------------------------------------------


def test_an_encrypted_signer_is_asked_for_only_when_it_signs(tmp_path: Path) -> None:
    asked = []

    def ask(question: str) -> str:
        asked.append(question)
        return SECRET

    path = encrypted(tmp_path / "key.pem")
    found = signers.load_signers({signers.VARIABLE: str(path)}, ask)["anna"]
    assert found.public_key.scheme == "ed25519"
    assert asked == []
    for payload in (b"one", b"two"):
        found.public_key.verify_signature(found.sign(payload), payload)
    assert asked == ["passphrase of anna"]


def test_the_file_has_no_seed_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "key.pem")
    assert "BEGIN ENCRYPTED PRIVATE KEY" in path.read_text()
    assert os.name != "posix" or path.stat().st_mode & 0o777 == 0o600
    assert {*signers.load_secrets({signers.VARIABLE: str(path)})} == {"anna"}
    with pytest.raises(PublishError, match="cannot be made: File exists"):
        encrypted(path)


@pytest.mark.parametrize("way", ["variable", "file", "folder"])
def test_a_job_gives_the_passphrase(tmp_path: Path, way: str) -> None:
    path = encrypted(tmp_path / "anna.pem")
    place = tmp_path / "credentials" / "anna"
    place.parent.mkdir()
    place.touch(0o600)
    place.write_text(f"{SECRET}\n")
    environ = {
        "variable": {passphrases.VARIABLE: SECRET},
        "file": {passphrases.FILE_VARIABLE: str(place)},
        "folder": {passphrases.FILE_VARIABLE: str(place.parent)},
    }[way]
    assert loaded(path, **environ)["anna"].sign(b"x")
    place.write_text(WRONG)
    place.chmod(0o644)
    if way != "variable" and os.name == "posix":
        with pytest.raises(PublishError, match="other users can open") as caught:
            loaded(path, **environ)["anna"].sign(b"x")
        assert WRONG not in str(caught.value)


def test_a_job_without_a_passphrase_learns_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"no terminal to ask .* anna: TSUKU_LLM_PASS"):
        loaded(encrypted(tmp_path / "a.pem"))["anna"].sign(b"x")


@pytest.mark.parametrize("kind", ["p256", "p384", "rsa"])
@pytest.mark.parametrize("passphrase", [SECRET, None])
def test_a_key_of_openssl_signs_under_the_name_of_its_file(
    tmp_path: Path, kind: str, passphrase: str | None
) -> None:
    private = {
        "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 3072),
    }[kind]()
    path = foreign(tmp_path / "anna.pem", private, passphrase)
    found = loaded(path, **{passphrases.VARIABLE: SECRET})
    found["anna"].public_key.verify_signature(found["anna"].sign(b"x"), b"x")


def test_a_key_that_no_client_accepts_is_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path / "anna.pem", dsa.generate_private_key(2048))
    with pytest.raises(PublishError, match="no key of a kind that clients accept"):
        loaded(path)


def test_a_wrong_passphrase_is_one_error_without_it(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "a.pem")
    with pytest.raises(PublishError, match="the passphrase is wrong") as caught:
        loaded(path, **{passphrases.VARIABLE: WRONG})["anna"].sign(b"x")
    assert WRONG not in str(caught.value)
    assert caught.value.__suppress_context__


# --- several files --------------------------------------------------------------------------


def test_files_and_folders_of_signers_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    encrypted(tmp_path / "folder" / "one.pem", "anna")
    signers_file(tmp_path / "folder" / "two.json", "ben")
    (tmp_path / "folder" / "notes.txt").write_text("not a signer")
    signers_file(tmp_path / "three.json", "chris", "host")
    found = loaded(tmp_path / "folder", tmp_path / "three.json")
    assert sorted(found) == ["anna", "ben", "chris", "host"]
    known = signers.load_secrets(
        {signers.VARIABLE: f"{tmp_path / 'folder'}{os.pathsep}{tmp_path / 'three.json'}"}
    )
    assert len(known.pop("anna")) == 32
    assert known == {name: bytes.fromhex(seed_of(name)) for name in ("ben", "chris", "host")}
    encrypted(tmp_path / "again.pem", "chris")
    with pytest.raises(PublishError, match="chris is in two files"):
        loaded(tmp_path / "again.pem", tmp_path / "three.json")


def test_a_folder_without_signers_is_named(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="has no files"):
        loaded(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_every_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    pem = foreign(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()))
    public = loaded(pem)["key"].public_key
    entry = {"uri": "file2:key.pem", "scheme": public.scheme, "public": public.keyval["public"]}
    named = tmp_path / "named.json"
    named.touch(0o600)
    named.write_text(json.dumps({"anna": entry}))
    assert loaded(named)["anna"].sign(b"x")
    pem.chmod(0o640)
    for path in (pem, named, tmp_path):
        with pytest.raises(PublishError, match=r"other users can open .*key\.pem"):
            loaded(path)


@pytest.mark.parametrize(
    "changes",
    [{"uri": 5}, {"scheme": None}, {"public": 5}, {"public": ""}, {"public": "5e5e"}],
    ids=str,
)
def test_an_entry_with_a_uri_needs_its_public_key(tmp_path: Path, changes: object) -> None:
    path = tmp_path / "a.json"
    path.touch(0o600)
    entry = {"uri": "hsm:2", "scheme": "ed25519", "public": "5e" * 32} | dict(changes)  # type: ignore[call-overload]
    path.write_text(json.dumps({"anna": entry}))
    with pytest.raises(PublishError, match="anna"):
        loaded(path)


# --- tokens and services -----------------------------------------------------------------------


class Talkative(Signer):
    """A service's signer that says the PIN in its error, or signs with another key."""

    def __init__(self, public: Key, uri: str, secret: str) -> None:
        self._public, self._uri, self._secret = public, uri, secret

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> "Talkative":
        assert secrets_handler is not None
        return cls(public_key, priv_key_uri, secrets_handler("token"))

    @property
    def public_key(self) -> Key:
        return self._public

    def sign(self, payload: bytes) -> Signature:
        if self._uri.endswith("other"):
            return Signature(
                self._public.keyid, CryptoSigner.generate_ecdsa().sign(payload).signature
            )
        raise RuntimeError(f"denied:\n{self._secret} is no token")


def with_uri(path: Path, uri: str) -> Path:
    public = CryptoSigner.generate_ecdsa().public_key
    entry = {"uri": uri, "scheme": public.scheme, "public": public.keyval["public"]}
    path.touch(0o600)
    path.write_text(json.dumps({"anna": entry}))
    return path


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("talkative:key", r"anna cannot sign: denied: … is no token$"),
        ("talkative:other", "anna cannot sign: "),
        ("unheard:key", "no signer has a URI that begins with unheard: the kinds are awskms, "),
        ("awskms:key", "anna cannot sign: .*install it with: pip install"),
        ("pkcs11:token=x", "names no key by its id"),
        ("pkcs11:id=%02?pin-value=1234", "a URI has no pin-value"),
    ],
    ids=["denied", "unknown", "unheard", "cloud", "no id", "PIN"],
)
def test_what_a_service_says_is_told_without_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, reason: str
) -> None:
    monkeypatch.setitem(SIGNER_FOR_URI_SCHEME, "talkative", Talkative)
    found = loaded(with_uri(tmp_path / "a.json", uri), **{passphrases.VARIABLE: SECRET})["anna"]
    with pytest.raises(PublishError, match=reason) as caught:
        found.sign(b"x")
    assert SECRET not in str(caught.value)
    assert "1234" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    if find_spec("pkcs11") is None:
        missing("the package python-pkcs11")
    made = softhsm(tmp_path_factory.mktemp("softhsm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(made.config))
        patch.delenv("PYKCS11LIB", raising=False)
        yield made


def test_keys_of_tokens_sign_a_repository(tokens: Tokens, tmp_path: Path) -> None:
    lines = []
    for name in ("anna", "ben"):
        uri = tokens.uri(name)
        file = tmp_path / f"{name}.json"
        done = release_tool("new-signer", name, file, "--pkcs11", uri, TSUKU_LLM_PASSPHRASE=PIN)
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout)
        assert PIN not in file.read_text()
    assert "ecdsa-sha2-nistp256" in lines[0]
    assert "ecdsa-sha2-nistp384" in lines[1]
    data = tmp_path / "data"
    data.mkdir()
    role = (
        'version = 1\nissued = 2026-11-20\ndays = 9000\nsigners = ["anna", "ben"]\nthreshold = 2\n'
    )
    roles = "".join(
        f"[roles.{each}]\n{role}" for each in ("root", "targets", "snapshot", "timestamp")
    )
    text = f"[channels]\nstable = []\n[keys]\n{''.join(lines)}{roles}"
    (data / "repository.toml").write_text(text)
    environ = {signers.VARIABLE: f"{tmp_path / 'anna.json'}{os.pathsep}{tmp_path / 'ben.json'}"}
    wrong = release_tool("sign", "--data", data, **environ, TSUKU_LLM_PASSPHRASE="not the pin")
    assert wrong.returncode == 1
    assert wrong.stderr == "error[publish]: anna cannot sign: PinIncorrect\n"
    done = release_tool("sign", "--data", data, **environ, TSUKU_LLM_PASSPHRASE=PIN)
    assert done.returncode == 0, done.stderr
    done = release_tool("check", "--data", data, "--on", "2026-11-21")
    assert done.returncode == 0, done.stderr
    # ECDSA signs the same bytes differently each time: the published signatures stay.
    before = (data / "signed" / "metadata" / "1.root.json").read_bytes()
    words = ("--raise", "--data", data)
    done = release_tool("sign", *words, **environ, TSUKU_LLM_PASSPHRASE=PIN)
    assert done.returncode == 0, done.stderr
    assert (data / "signed" / "metadata" / "1.root.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda uri: uri.replace("%02", "%07"), "could not find ECDSA key"),
        (lambda uri: uri.replace("anna", "nobody"), "No PKCS#11 token found"),
        (lambda uri: uri.replace("libsofthsm2", "none"), "none.so"),
        (lambda _: "https://host.example", "names no key of a token"),
        (lambda _: "hsm:x", "names no key of a token"),
    ],
)
def test_a_token_or_key_that_is_not_there_is_named(
    tokens: Tokens, tmp_path: Path, change: Callable[[str], str], reason: str
) -> None:
    uri = change(tokens.uri("anna"))
    done = release_tool(
        "new-signer", "anna", tmp_path / "a.json", "--pkcs11", uri, TSUKU_LLM_PASSPHRASE=PIN
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert reason in done.stderr
    assert PIN not in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- on a terminal -----------------------------------------------------------------------------


def answered(terminal: int, dialogue: list[tuple[str, str]]) -> str:
    """Answer each question when it is there; an answer that comes before it is thrown away."""
    said, waiting = "", list(dialogue)
    while True:
        try:
            block = os.read(terminal, 4096)
        except OSError:
            return said
        if not block:
            return said
        said += block.decode()
        if waiting and said.rstrip().endswith(waiting[0][0]):
            os.write(terminal, f"{waiting.pop(0)[1]}\n".encode())


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
@pytest.mark.parametrize(
    ("second", "code", "end"),
    [(SECRET, 0, 'anna = "'), (WRONG, 1, "these are two different passphrases")],
)
def test_a_new_signer_is_encrypted_with_what_is_typed_twice(
    tmp_path: Path, second: str, code: int, end: str
) -> None:
    ours, theirs = open_terminal()
    child = subprocess.Popen(
        [*PUBLISHER, "new-signer", "anna", str(tmp_path / "anna.pem")],
        env=environment(tmp_path / "home", COLUMNS="1000"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    questions = ("new passphrase of anna:", "again, the passphrase of anna:")
    said = answered(ours, [*zip(questions, (SECRET, second), strict=True)])
    os.close(ours)
    assert child.wait() == code, said
    assert end in said
    assert "horse" not in said
    assert (tmp_path / "anna.pem").exists() == (code == 0)
    if code == 0:
        assert loaded(tmp_path / "anna.pem", TSUKU_LLM_PASSPHRASE=SECRET)["anna"].sign(b"x")


def test_a_key_without_a_passphrase_is_made_on_purpose_only(tmp_path: Path) -> None:
    for words in (
        ("new-signer", "anna", str(tmp_path / "anna.pem")),
        ("init", str(tmp_path / "new"), "--publisher", "x", "--root", "anna,ben"),
    ):
        done = release_tool(*words)
        assert done.returncode == 1
        assert "no terminal to ask for a new passphrase of anna" in done.stderr
        assert "TSUKU_LLM_PASSPHRASE_FILE names the file" in done.stderr
        assert "--unencrypted" in done.stderr
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert release_tool(*words, "--unencrypted").returncode == 0
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            path.unlink()


def test_a_short_passphrase_makes_no_signer(tmp_path: Path) -> None:
    done = release_tool("new-signer", "anna", tmp_path / "a.pem", TSUKU_LLM_PASSPHRASE="short")
    assert done.returncode == 1
    assert done.stderr.startswith("error[publish]: a passphrase has at least 8 characters")
    assert list(tmp_path.iterdir()) == []


def test_public_keys_of_pem_files_are_read(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "a.pem")
    found = loaded(path)["anna"].public_key
    raw = signers.serialization.load_pem_public_key(
        path.read_bytes()[path.read_bytes().index(b"-----BEGIN PUBLIC") :]
    ).public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert found.keyval["public"] == raw.hex()
