"""A throwaway certificate authority, and server certificates that are good or not."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """``chain`` and ``key`` are PEM files of a server."""

    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """A CA whose certificate lies in ``path``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("tsuku-llm tests")
        certificate = (
            _builder(name, name, self._key.public_key(), -DAY, 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._certificate = certificate
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        host: str = "localhost",
        *,
        since: timedelta = -DAY,
        until: timedelta = 30 * DAY,
        self_signed: bool = False,
    ) -> Certificate:
        """A certificate for a host or an address (and, for localhost, for 127.0.0.1)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        with contextlib.suppress(ValueError):
            address = "127.0.0.1" if host == "localhost" else host
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        subject = _name(host)
        issuer, signer = (subject, key) if self_signed else (self._certificate.subject, self._key)
        certificate = (
            _builder(subject, issuer, key.public_key(), since, until)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
            .sign(signer, hashes.SHA256())
        )
        stem = f"{host}-{key.private_numbers().private_value % 10**9}"
        chain, key_path = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Certificate(chain, key_path)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: timedelta,
    until: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since)
        .not_valid_after(now + until)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
