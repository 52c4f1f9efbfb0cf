"""A Sigstore for the tests: certificates, a certificate log and an entry log that sign.

``attest`` gives what a build service stores with a build: a bundle whose certificate names
the workflow, whose statement names the files, and whose log entry says when. Everything is
genuine but the keys, which ``trusted_root`` lists; sigstore-python verifies it as it
verifies the public instance.
"""

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

WHEN = datetime(2026, 10, 5, 9, tzinfo=timezone.utc)
REPOSITORY = "https://github.com/ggml-org/llama.cpp"
COMMIT = "2f" * 20

_FULCIO = "1.3.6.1.4.1.57264.1"
_SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ECDSA = ec.ECDSA(hashes.SHA256())
_STATEMENT = "application/vnd.in-toto+json"


BEFORE = ".github/workflows/release.yml"
NOW = ".github/workflows/release-publish.yml"


def attesting_workflow(tag: str) -> str:
    """Return the workflow of upstream that attests a build, as its source says.

    The step with ``attest`` is in release.yml at b11349, and in release-publish.yml at b11393.
    """
    return NOW if int(tag.removeprefix("b")) >= 11393 else BEFORE


@dataclass(frozen=True)
class Build:
    """What the build service's token said; the defaults are upstream's own release build."""

    repository: str = REPOSITORY
    workflow: str = BEFORE
    ref: str = "refs/heads/master"
    issuer: str = "https://token.actions.githubusercontent.com"
    runner: str = "github-hosted"
    commit: str = COMMIT

    @property
    def uri(self) -> str:
        return f"{self.repository}/{self.workflow}@{self.ref}"

    def claims(self) -> dict[int, str]:
        """Fulcio's extensions, by the last number of their OID."""
        signer = {8: self.issuer, 9: self.uri, 10: self.commit, 11: self.runner}
        source = {12: self.repository, 13: self.commit, 14: self.ref}
        return signer | source | {18: self.uri, 19: self.commit}


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class SigstoreInstance:
    """Its keys; two instances trust nothing of each other."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificates: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    entries: ec.EllipticCurvePrivateKey = field(default_factory=_key)

    def trusted_root(self) -> bytes:
        """The file that verifiers are given."""
        # Long ago: sigstore takes only what is valid by the system's clock.
        valid = {"validFor": {"start": "2000-01-01T00:00:00+00:00"}}
        root = self._root().public_bytes(Encoding.DER)
        authority = {
            "subject": {"organization": "tests", "commonName": "authority"},
            "uri": "https://fulcio.example",
            "certChain": {"certificates": [{"rawBytes": _base64(root)}]},
            **valid,
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log(self.entries, "https://rekor.example", valid)],
            "ctlogs": [_log(self.certificates, "https://ct.example", valid)],
            "certificateAuthorities": [authority],
            "timestampAuthorities": [],
        }
        return json.dumps(document).encode()

    def attest(
        self,
        subjects: Mapping[str, str],
        build: Build | None = None,
        *,
        predicate: str = "https://slsa.dev/provenance/v1",
        statement: str = "https://in-toto.io/Statement/v1",
    ) -> dict[str, Any]:
        """A bundle for these files (name → SHA-256) as JSON data, to be changed by attacks."""
        key = _key()
        leaf = self._leaf(build or Build(), key).public_bytes(Encoding.PEM)
        body = {
            "_type": statement,
            "subject": [
                {"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()
            ],
            "predicateType": predicate,
            "predicate": {"buildDefinition": {"buildType": "tests"}},
        }
        payload = json.dumps(body).encode()
        encoded = b"DSSEv1 %d %s %d %s" % (
            len(_STATEMENT), _STATEMENT.encode(), len(payload), payload,
        )  # fmt: skip
        signature = key.sign(encoded, _ECDSA)
        certificate = x509.load_pem_x509_certificate(leaf).public_bytes(Encoding.DER)
        envelope = {
            "payload": _base64(payload),
            "payloadType": _STATEMENT,
            "signatures": [{"sig": _base64(signature)}],
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _base64(certificate)},
                "tlogEntries": [self._entry(payload, signature, leaf, envelope)],
            },
            "dsseEnvelope": envelope,
        }

    # --- certificates ----------------------------------------------------------------------

    def _root(self) -> x509.Certificate:
        public = self.authority.public_key()
        name = _name("authority")
        return (
            _builder(name, name, public, timedelta(days=36_500))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def _leaf(self, build: Build, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        issuer = self.authority.public_key()
        builder = (
            _builder(_name("authority"), x509.Name([]), key.public_key(), timedelta(minutes=10))
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(build.uri)]),
                critical=True,
            )
        )
        for number, text in build.claims().items():
            oid = ObjectIdentifier(f"{_FULCIO}.{number}")
            value = x509.UnrecognizedExtension(oid, _utf8(text))
            builder = builder.add_extension(value, critical=False)
        draft = self._with_sct(builder, b"")
        return self._with_sct(builder, self._promise(draft.tbs_precertificate_bytes))

    def _with_sct(self, builder: x509.CertificateBuilder, signature: bytes) -> x509.Certificate:
        """The certificate with one signed certificate timestamp (RFC 6962, section 3.2)."""
        log, stamp = _key_id(self.certificates), int(WHEN.timestamp() * 1000)
        signed = struct.pack("!BBH", 4, 3, len(signature)) + signature
        sct = struct.pack("!B32sQH", 0, log, stamp, 0) + signed
        scts = struct.pack("!HH", len(sct) + 2, len(sct)) + sct
        extension = x509.UnrecognizedExtension(_SCT_LIST, b"\x04" + _length(scts) + scts)
        return builder.add_extension(extension, critical=False).sign(
            self.authority, hashes.SHA256()
        )

    def _promise(self, certificate: bytes) -> bytes:
        stamp = int(WHEN.timestamp() * 1000)
        signed = struct.pack("!BBQH", 0, 0, stamp, 1) + _key_id(self.authority)
        signed += len(certificate).to_bytes(3, "big") + certificate + struct.pack("!H", 0)
        return self.certificates.sign(signed, _ECDSA)

    # --- the log ---------------------------------------------------------------------------

    def _entry(
        self, payload: bytes, signature: bytes, leaf: bytes, envelope: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the only entry of a log."""
        spec = {
            "envelopeHash": _hashed(json.dumps(envelope).encode()),
            "payloadHash": _hashed(payload),
            "signatures": [{"signature": _base64(signature), "verifier": _base64(leaf)}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        root = hashlib.sha256(b"\0" + body).digest()
        log, stamp = _key_id(self.entries), int(WHEN.timestamp()) + 1
        promised: dict[str, Any] = {
            "body": _base64(body), "integratedTime": stamp, "logID": log.hex(), "logIndex": 0,
        }  # fmt: skip
        return {
            "logIndex": "0",
            "logId": {"keyId": _base64(log)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(stamp),
            "inclusionPromise": {
                "signedEntryTimestamp": _base64(self.entries.sign(rfc8785.dumps(promised), _ECDSA))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _base64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": self._checkpoint(root)},
            },
            "canonicalizedBody": _base64(body),
        }

    def _checkpoint(self, root: bytes) -> str:
        note = f"rekor.example - 1\n1\n{_base64(root)}\n"
        signature = _key_id(self.entries)[:4] + self.entries.sign(note.encode(), _ECDSA)
        return f"{note}\n\u2014 rekor.example {_base64(signature)}\n"


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, lasting: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(int.from_bytes(_fingerprint(key)[:8], "big"))
        .not_valid_before(WHEN - timedelta(minutes=1))
        .not_valid_after(WHEN + lasting)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _log(key: ec.EllipticCurvePrivateKey, url: str, valid: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "baseUrl": url,
        "hashAlgorithm": "SHA2_256",
        "publicKey": {
            "rawBytes": _base64(_public(key.public_key())),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            **valid,
        },
        "logId": {"keyId": _base64(_key_id(key))},
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _public(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _fingerprint(key: ec.EllipticCurvePublicKey) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _fingerprint(key.public_key())


def _hashed(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def _utf8(text: str) -> bytes:
    return b"\x0c" + _length(text.encode()) + text.encode()


def _length(data: bytes) -> bytes:
    """The DER length of some bytes."""
    if len(data) < 0x80:
        return bytes([len(data)])
    size = len(data).to_bytes(2, "big").lstrip(b"\0")
    return bytes([0x80 | len(size)]) + size


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
