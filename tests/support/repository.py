"""A signed repository in memory that really signs: the fake for everything about trust.

``RepositorySimulator`` makes its own throwaway signers (root and targets 2-of-3, one online
signer), keeps every file it ever published and answers as the three things a repository is:

- a copy for ``trust.load``: ``read(name)``
- a host for ``refreshing.refresh``: ``download(name, limit)``, with ``requests`` as its log
- static files for a web server or ``manifests/``: ``write(folder)``

    simulator = RepositorySimulator()
    simulator.publish(release_document("b2", version="0.2.0"), channels=["stable"])
    repository = simulator.repository()                     # a ``Repository``
    simulator.install(data, "company", "https://host/llm/") # as ``repository add`` would

``publish`` bumps and signs targets, snapshot and timestamp; a release document is a dict in
the form of a release file. Attacks change the public state (``timestamp``, ``snapshot``,
``targets``, ``root``, ``signers``, ``files``) and sign again with ``sign_timestamp`` and so on,
or flip a bit with ``flip``. ``delegate("nightly", "releases/n*.json")`` makes a delegated role,
with its content in ``delegated`` and its signers in ``delegates``. The pinned root is
``simulator.pinned_root``.
"""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]
from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Signed,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from tsuku_llm.catalog.repositories import Repository, add_repository
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import BodyError, HttpStatusError

URL = "https://releases.example/llm/"
ISSUED = datetime(2026, 11, 20, tzinfo=timezone.utc)
EXPIRES = datetime(2200, 1, 1, tzinfo=timezone.utc)
"""So far that no test meets it."""

THRESHOLDS = {"root": 2, "targets": 2, "snapshot": 1, "timestamp": 1}


def signer(name: str) -> CryptoSigner:
    """A throwaway signer; the same name gives the same keys."""
    seed = hashlib.sha256(f"throwaway {name}".encode()).digest()
    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed))


@cache
def other_signer(kind: str, number: int = 0) -> CryptoSigner:
    """A throwaway signer of another kind: "p256", "p384" or the bits of an RSA key."""
    if kind.isdecimal():
        return CryptoSigner(rsa.generate_private_key(65537, int(kind)))
    curve = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1()}[kind]
    seed = hashlib.sha256(f"throwaway {kind} {number}".encode()).digest()
    return CryptoSigner(ec.derive_private_key(int.from_bytes(seed, "big") >> 1, curve))


def release_document(
    release: str = "b1",
    *,
    version: str | None = None,
    platforms: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A release file's content, with one CPU variant for linux-amd64 unless told otherwise."""
    return {
        "format": 1,
        "release": release,
        **({"version": version} if version else {}),
        "publisher": "simulator",
        "published": "2026-10-05",
        "platforms": platforms or {"linux-amd64": cpu_platform()},
        **fields,
    }


def cpu_platform() -> dict[str, Any]:
    """A platform with one CPU variant of one archive that exists nowhere."""
    return {
        "default": "cpu",
        "preference": {"portable": ["cpu"], "native": ["cpu"]},
        "variants": {
            "cpu": {
                "backend": "cpu",
                "server": "llama-server",
                "requires": {},
                "artifacts": [
                    {
                        "url": f"{URL}cpu.tar.gz",
                        "sha256": "0" * 64,
                        "size": 1,
                        "format": "tar.gz",
                        "root": "llama",
                    }
                ],
            }
        },
    }


class FrozenCopy:
    """The files of one moment."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)


class RepositorySimulator:
    """See the module's docstring."""

    def __init__(self, url: str = URL, *, name: str = "simulator") -> None:
        self.url = url
        self.name = name
        # A program that has the system's day may run before the day of all others.
        self.issued = min(ISSUED, clock.now())
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.signers: dict[str, list[CryptoSigner]] = {
            "root": [signer(f"{name} root {number}") for number in (1, 2, 3)],
            "targets": [signer(f"{name} targets {number}") for number in (1, 2, 3)],
            "snapshot": [signer(f"{name} online")],
            "timestamp": [signer(f"{name} online")],
        }
        self.delegates: dict[str, list[CryptoSigner]] = {}
        self.delegated: dict[str, Targets] = {}
        self.root = Root(**self._common(1), consistent_snapshot=True)
        self.targets = Targets(**self._common(1))
        self.snapshot = Snapshot(**self._common(1))
        self.timestamp = Timestamp(**self._common(1))
        self.adopt_signers()
        self.sign_root()
        self.sign()

    # --- publishing ------------------------------------------------------------------------

    def publish(
        self,
        *releases: Mapping[str, Any],
        channels: Iterable[str] = ("stable",),
        sequence: int | None = None,
    ) -> None:
        """Add or replace release documents in these channels, and sign everything again."""
        for release in releases:
            self.add(release, channels=channels, sequence=sequence)
        self.bump()

    def add(
        self,
        release: Mapping[str, Any],
        *,
        channels: Iterable[str] = ("stable",),
        sequence: int | None = None,
        role: str = "targets",
    ) -> None:
        """Put a release into the targets, or into a delegated role, without signing yet."""
        tag = release["release"]
        digits = "".join(letter for letter in tag if letter.isdigit())
        keys = ("release", "version", "publisher", "published")
        entry = {key: release[key] for key in keys if key in release}
        entry |= {"sequence": int(digits or 0) if sequence is None else sequence}
        entry |= {"channels": list(channels)}
        self.add_target(f"releases/{tag}.json", json.dumps(release).encode(), entry, role)

    def add_target(self, path: str, data: bytes, custom: Any, role: str = "targets") -> None:
        """Put any file into the targets, or into a delegated role, without signing yet."""
        file = TargetFile.from_data(path, data, ["sha256"])
        file.unrecognized_fields["custom"] = custom
        self.targets_of(role).targets[path] = file
        self.files[f"targets/{file.get_prefixed_paths()[0]}"] = data

    def targets_of(self, role: str) -> Targets:
        """The content of targets or of a delegated role."""
        return self.targets if role == "targets" else self.delegated[role]

    def delegate(
        self,
        name: str,
        *paths: str,
        by: str = "targets",
        terminating: bool = False,
        threshold: int = 1,
        signers: Iterable[CryptoSigner] | None = None,
    ) -> None:
        """Let a role delegate paths to another, without signing yet."""
        self.delegates.setdefault(name, [*(signers or [signer(f"{self.name} {name}")])])
        self.delegated.setdefault(name, Targets(**self._common(1)))
        delegator = self.targets_of(by)
        delegator.delegations = delegator.delegations or Delegations({}, {})
        assert delegator.delegations.roles is not None
        delegator.delegations.roles[name] = DelegatedRole(
            name, [], threshold, terminating, [*paths]
        )
        for each in self.delegates[name]:
            delegator.add_key(each.public_key, name)

    def bump(self) -> None:
        """New versions of targets, delegated roles, snapshot and timestamp, signed."""
        for signed in (self.targets, *self.delegated.values(), self.snapshot, self.timestamp):
            signed.version += 1
        self.sign()

    def expire(self, role: str, when: datetime) -> None:
        """Let a role expire then, and sign everything again (a root needs ``rotate``)."""
        getattr(self, role).expires = when
        self.bump()

    def rotate(self, *roles: str, generation: str = "new", old: bool = True) -> None:
        """A next root in which these roles have new signers, and everything signed by them.

        ``old=False`` leaves out the old root signers' signatures.
        """
        before = self.signers["root"] if old else []
        for role in roles:
            names = [f"{self.name} {role} {generation} {n}" for n in (1, 2, 3)]
            self.signers[role] = [signer(name) for name in names[: len(self.signers[role])]]
        self.adopt_signers()
        self.root.version += 1
        self.sign_root([*before, *self.signers["root"]])
        self.bump()

    # --- signing ---------------------------------------------------------------------------

    def adopt_signers(self) -> None:
        """Let the root name the present signers."""
        self.root.keys.clear()
        for role, signers in self.signers.items():
            self.root.roles[role].keyids.clear()
            self.root.roles[role].threshold = THRESHOLDS[role]
            for each in signers:
                self.root.add_key(each.public_key, role)

    def sign(self) -> None:
        """Sign targets, snapshot and timestamp as they are, each naming the one before."""
        for name in self.delegated:
            self.sign_delegated(name)
        self.sign_targets()
        self.sign_snapshot()
        self.sign_timestamp()

    def sign_root(self, signers: Iterable[CryptoSigner] | None = None) -> None:
        self._put(f"{self.root.version}.root", self.root, signers)

    def sign_targets(self, signers: Iterable[CryptoSigner] | None = None) -> None:
        data = self._put(f"{self.targets.version}.targets", self.targets, signers)
        version = self.targets.version
        self.snapshot.meta["targets.json"] = MetaFile.from_data(version, data, ["sha256"])

    def sign_delegated(self, name: str, signers: Iterable[CryptoSigner] | None = None) -> None:
        signed = self.delegated[name]
        by = self.delegates[name] if signers is None else signers
        data = self._put(f"{signed.version}.{quote(name, safe='')}", signed, by)
        self.snapshot.meta[f"{name}.json"] = MetaFile.from_data(signed.version, data, ["sha256"])

    def sign_snapshot(self, signers: Iterable[CryptoSigner] | None = None) -> None:
        data = self._put(f"{self.snapshot.version}.snapshot", self.snapshot, signers)
        version = self.snapshot.version
        self.timestamp.snapshot_meta = MetaFile.from_data(version, data, ["sha256"])

    def sign_timestamp(self, signers: Iterable[CryptoSigner] | None = None) -> None:
        self._put("timestamp", self.timestamp, signers)

    def signed(self, signed: Signed, signers: Iterable[CryptoSigner]) -> bytes:
        metadata: Metadata[Any] = Metadata(signed)
        seen = set()
        for each in signers:
            if each.public_key.keyid not in seen:
                seen.add(each.public_key.keyid)
                metadata.sign(each, append=True)
        return metadata.to_bytes()

    def _put(self, name: str, signed: Signed, signers: Iterable[CryptoSigner] | None) -> bytes:
        data = self.signed(signed, self.signers[signed.type] if signers is None else signers)
        self.files[f"metadata/{name}.json"] = data
        return data

    def _common(self, version: int) -> dict[str, Any]:
        issued = {"issued": self.issued.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return {"version": version, "expires": EXPIRES, "unrecognized_fields": issued}

    # --- being a repository ----------------------------------------------------------------

    @property
    def pinned_root(self) -> bytes:
        return self.files["metadata/1.root.json"]

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def freeze(self) -> FrozenCopy:
        """A copy that later changes do not reach, such as one embedded in a package."""
        return FrozenCopy(self.files)

    def fork(self) -> "RepositorySimulator":
        """The same repository, free to go another way."""
        return copy.deepcopy(self)

    def repository(self, *, embedded: FrozenCopy | None = None) -> Repository:
        """The repository as the catalog knows it, with an embedded copy or without."""
        return Repository(self.name, self.url, self.pinned_root, embedded)

    def download(self, name: str, limit: int) -> bytes:
        """What its host answers; raises what ``fetch`` would raise."""
        self.requests.append(name)
        data = self.files.get(name)
        if data is None:
            raise HttpStatusError(f"{name}: 404", status=404)
        if len(data) > limit:
            raise BodyError(f"{name} has more than {limit} bytes")
        return data

    def write(self, folder: Path) -> None:
        """Write every file, as static files below a web root."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def install(self, data: Path, name: str, url: str | None = None) -> Repository:
        """Add it to a user's repositories; ``refreshing.refresh`` then fetches it."""
        return add_repository(data, name, url or self.url, self.pinned_root)

    def flip(self, name: str, at: int) -> None:
        """Change one bit of a published file, counted from its start."""
        data = bytearray(self.files[name])
        data[at // 8] ^= 1 << (at % 8)
        self.files[name] = bytes(data)
