"""Keys that stay in a PKCS#11 token or in a key service, by the URI that names them.

``hsm:`` and the URIs of key services are those of securesystemslib. ``pkcs11:`` is of RFC 7512,
as ``p11tool`` prints it: it also says which library leads to the token.
"""

import os
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlencode

from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import (  # type: ignore[attr-defined]  # its own re-exports
    SIGNER_FOR_URI_SCHEME,
    HSMSigner,
    Signer,
    SSlibKey,
)

from tsuku_publish.errors import PublishError

_MODULE = "PYKCS11LIB"
"""The variable in which securesystemslib looks for the path of the token's library."""
_HSM = "pip install 'tsuku-publish[hsm]'"
_FORM = "pkcs11:token=LABEL;id=%02?module-path=/PATH/OF/LIBRARY.so"


def open_signer(uri: str, public: SSlibKey, secret: Callable[[str], str]) -> Signer:
    """Return the signer of a URI; ``secret`` gives the PIN. Raises ``PublishError`` and others."""
    kind = uri.partition(":")[0]
    if kind not in ("pkcs11", *SIGNER_FOR_URI_SCHEME):
        known = ", ".join(sorted(("pkcs11", *SIGNER_FOR_URI_SCHEME)))
        raise PublishError(f"no signer has a URI that begins with {kind}: the kinds are {known}")
    plain: Signer = Signer.from_priv_key_uri(_plain(uri), public, secret)
    return plain


def public_key_of(uri: str, secret: Callable[[str], str]) -> SSlibKey:
    """Return the public key of a key in a PKCS#11 token. Raises ``PublishError``."""
    plain = _plain(uri)
    path, _, query = plain.partition("?")
    kind, _, number = path.partition(":")
    if kind != HSMSigner.SCHEME or not (number or "2").isdecimal():
        raise PublishError(f"{uri} names no key of a token: write {_FORM}")
    label = dict(parse_qsl(query)).get("label")
    try:
        _, public = HSMSigner.import_(int(number or 2), label, secret)
    except PublishError:
        raise
    except Exception as error:  # noqa: BLE001 - a token's library raises errors of any kind
        said = " ".join(str(error).split()) or type(error).__name__
        raise PublishError(f"{uri} cannot be read: {said}{missing_package(error)}") from None
    return public


def missing_package(error: Exception) -> str:
    """Return what to install, if an error says that a package is missing."""
    if not isinstance(error, UnsupportedLibraryError):
        return ""
    return f"; install it with: {_HSM}, or for a key service with an extra of securesystemslib"


def _plain(uri: str) -> str:
    """Return the URI as securesystemslib reads it; remember the library that it names."""
    kind, _, rest = uri.partition(":")
    if kind != "pkcs11":
        return uri
    path, _, query = rest.partition("?")
    attributes = dict(each.partition("=")[::2] for each in filter(None, path.split(";")))
    more = dict(each.partition("=")[::2] for each in filter(None, query.split("&")))
    if "pin-value" in more:
        raise PublishError("a URI has no pin-value: others can see it; the PIN is asked for")
    identity = unquote_to_bytes(attributes.get("id", ""))
    if not identity or identity[0] == 0:
        raise PublishError(f"{uri} names no key by its id, without leading zeros: write {_FORM}")
    if "module-path" in more:
        os.environ[_MODULE] = unquote(more["module-path"])
    label = {"label": unquote(attributes["token"])} if "token" in attributes else {}
    number = int.from_bytes(identity, "big")
    return f"{HSMSigner.SCHEME}:{number}" + (f"?{urlencode(label)}" if label else "")
