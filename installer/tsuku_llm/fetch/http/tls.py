"""The certificates that TLS trusts, and the errors for refused ones."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

import truststore

from tsuku_llm.ground.errors import TlsError
from tsuku_llm.ground.foreign import read_foreign

_FILE, _FOLDER = "SSL_CERT_FILE", "SSL_CERT_DIR"

_HINTS = (
    ("expired", "check the clock of this machine; if it is right, the server's owner must act"),
    ("not yet valid", "check the clock of this machine"),
    ("mismatch", "another server answers under this name: a proxy, a portal or a wrong mirror"),
    (
        "not valid for",
        "another server answers under this name: a proxy, a portal or a wrong mirror",
    ),
    (
        "self",
        f"if your network inspects TLS, set {_FILE} to a file with its CA certificate",
    ),
    (
        "issuer",
        f"install the system's CA certificates, or set {_FILE} to a file with your network's CA",
    ),
)


def client_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Make a TLS context with the system's trust store, or with the environment's.

    Raises ``TlsError`` if the named file or folder is missing or holds no certificate.
    """
    file, folder = environ.get(_FILE) or None, environ.get(_FOLDER) or None
    if not (file or folder):
        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wrong = None
    # OpenSSL would read a list of folders, of which some may be missing.
    if folder and not any(map(os.path.isdir, folder.split(os.pathsep))):
        wrong = _FOLDER, folder
    if file:
        try:
            read_foreign(file)  # no pipe, no device, no giant
        except OSError:
            wrong = _FILE, file
    if wrong:
        # OpenSSL's own error for a missing path does not say which variable names it.
        name, path = wrong
        raise TlsError(
            f"{name} names something that does not exist, or is not a file of certificates",
            facts=(f"{name}: {path}",),
            hint=f"correct {name}, or unset it to use the system's certificates",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(file, folder)
    except OSError as error:  # ssl.SSLError is one
        raise TlsError(
            "the certificates that the environment names cannot be read",
            facts=(f"{_FILE}: {file}, {_FOLDER}: {folder}", str(error)),
            hint="they must be PEM files",
        ) from error
    return context


def certificate_error(error: ssl.SSLError, host: str) -> TlsError:
    """Make the error for a failed handshake, with the reason that the certificate is refused."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or str(error)
        lowered = reason.lower()
        hint = next((hint for word, hint in _HINTS if word in lowered), _HINTS[-1][1])
        return TlsError(
            f"the certificate of {host} is not trusted", facts=(f"reason: {reason}",), hint=hint
        )
    return TlsError(
        f"no TLS connection to {host} could be made",
        facts=(f"reason: {error.reason or error}",),
        hint="a proxy or a server on the way may not support TLS: check proxies and the URL",
    )
