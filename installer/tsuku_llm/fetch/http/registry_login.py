"""Access to registries: the challenge of a registry, tokens, and where credentials come from.

A registry answers 401 and says what it wants. With "Bearer" it names a token server, which gets
the user's credentials, or none for a public repository. The answer is a token for a few minutes.
With "Basic" the credentials go to the registry itself.

Credentials come from the files of docker and podman, and from the helpers that these name.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tsuku_llm.fetch.http.urls import host_of, scheme_of, shown
from tsuku_llm.ground.errors import BodyError, DownloadError, HttpStatusError
from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.safe_text import Secret

Ask = Callable[[str, "Secret | None", bytes], bytes]
"""``(url, access, form) -> body``: a GET, or a POST of a form that is not empty.

``access`` is the value of the header ``Authorization``, for the host of ``url`` alone.
"""

LARGEST_TOKEN = 1 << 18
_LARGEST_FILE = 1 << 20
_HELPER_SECONDS = 60
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CHALLENGE = re.compile(r"(?P<scheme>Bearer|Basic)(?:\s+(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))')
_IDENTITY = "<token>"
"""Docker's user name for a secret that is an identity token."""


class Credentials(NamedTuple):
    """A user and a password; or, without a user, an identity token."""

    user: str
    secret: Secret

    def basic(self, url: str) -> Secret:
        """Return the value of the header ``Authorization`` for the host of ``url``."""
        pair = f"{self.user}:{self.secret.reveal()}".encode()
        return Secret(f"Basic {base64.b64encode(pair).decode()}", url)


class Challenge(NamedTuple):
    """What a registry wants: ``scheme`` is bearer or basic, in lower case."""

    scheme: str
    realm: str
    service: str
    scope: str


def parse_challenge(header: str) -> Challenge | None:
    """Read the header ``WWW-Authenticate``; None for a scheme that is not known."""
    found = _CHALLENGE.match(header.strip())
    if found is None:
        return None
    values = {
        name.lower(): quoted.replace('\\"', '"') or plain
        for name, quoted, plain in _PARAMETER.findall(found["rest"] or "")
    }
    named = (values.get(key, "") for key in ("realm", "service", "scope"))
    return Challenge(found["scheme"].lower(), *named)


class RegistryLogins:
    """The headers for the registries of a run; any thread may use it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._headers: dict[str, Secret] = {}
        # Held while a token is fetched: of the connections that get a 401 at once, one asks, and
        # the others then find its token.
        self._lock = threading.Lock()

    def header(self, api: str) -> Secret | None:
        """Return the value of ``Authorization`` that a repository accepted or may accept."""
        return self._headers.get(api)

    def log_in(self, api: str, challenge: str, used: Secret | None, ask: Ask) -> bool:
        """Get access to a repository that answered 401 with ``challenge``.

        ``used`` is the header of the refused request. Returns False if there are no credentials
        that could help. Raises the errors of ``ask`` for the token server.
        """
        wanted = parse_challenge(challenge)
        if wanted is None:
            return False
        with self._lock:
            # Another thread has a new token since: try that one first.
            if self._headers.get(api) != used:
                return True
            known = credentials_of(api, self._environ)
            if wanted.scheme == "basic":
                header = known.basic(api) if known and known.user else None
            else:
                header = Secret(f"Bearer {_token(wanted, known, ask)}", api)
            if header is None or header == used:
                return False
            self._headers[api] = header
            return True


def _token(wanted: Challenge, known: Credentials | None, ask: Ask) -> str:
    """Ask the token server that a registry names."""
    # The credentials go there: never without TLS.
    if scheme_of(wanted.realm) != "https":
        raise DownloadError(
            "a registry names a token server that is not used",
            facts=(f"token server: {shown(wanted.realm) or '(none)'}",),
            hint="only https: gets credentials; ask the registry's operator",
        )
    fields = {"service": wanted.service, "scope": wanted.scope}
    asked = {name: value for name, value in fields.items() if value}
    access: Secret | None = None
    form = b""
    if known and not known.user:
        # An identity token (docker's "<token>") is exchanged with a form, as OAuth 2 has it.
        grant = {"grant_type": "refresh_token", "refresh_token": known.secret.reveal()}
        form = urlencode({**grant, **asked, "client_id": "tsuku-llm"}).encode()
        url = wanted.realm
    else:
        mark = "&" if "?" in wanted.realm else "?"
        url = f"{wanted.realm}{mark}{urlencode(asked)}"
        access = known.basic(url) if known else None
    try:
        data = ask(url, access, form)
    except HttpStatusError as error:
        error.hint = _hint(known)
        raise
    try:
        document = parse_object(data)
    except ValueError:
        document = {}
    token = document.get("token") or document.get("access_token")
    if token and isinstance(token, str) and token.isascii() and token.isprintable():
        return token
    raise BodyError(
        f"{host_of(url)} gave no token",
        facts=(f"url: {shown(url)}",),
        hint="ask the registry's operator",
    )


def refused(url: str, api: str, environ: Mapping[str, str]) -> HttpStatusError:
    """Make the error for a registry that gives no access."""
    return HttpStatusError(
        f"{host_of(url)} gives no access",
        status=401,
        facts=(f"url: {shown(url)}",),
        hint=_hint(credentials_of(api, environ)),
    )


def _hint(known: Credentials | None) -> str:
    if known:
        return "the credentials of docker or podman were refused: log in again, or ask for access"
    return "log in first: podman login HOST, or docker login HOST"


# --- the files of docker and podman ----------------------------------------------------------


def credentials_of(api: str, environ: Mapping[str, str]) -> Credentials | None:
    """Find the credentials for a repository of a registry; None if there are none.

    Raises ``DownloadError`` if a helper that is configured for it fails.
    """
    for path in _files(environ):
        try:
            document = parse_object(read_foreign(path, _LARGEST_FILE))
        except (OSError, ValueError):
            continue  # a file that is missing or damaged has none
        for key in _keys(api):
            helper = _table(document, "credHelpers").get(key)
            if isinstance(helper, str):
                return _from_helper(helper, key, environ)
        auths = _table(document, "auths")
        entry = next((auths[key] for key in _keys(api) if key in auths), None)
        if isinstance(entry, dict) and (found := _from_entry(entry)):
            return found
        # Docker leaves an empty entry in "auths" for what its store has.
        store = document.get("credsStore")
        if isinstance(store, str) and entry is not None:
            return _from_helper(store, next(key for key in _keys(api) if key in auths), environ)
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files in the order of podman and skopeo, which also read docker's."""
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if folder := environ.get("DOCKER_CONFIG"):
        yield Path(folder) / "config.json"
    elif home:
        yield Path(home) / ".docker" / "config.json"
    if home:
        yield Path(home) / ".config" / "containers" / "auth.json"


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _keys(api: str) -> Iterator[str]:
    """Yield the names that a repository may have in these files, the most specific first."""
    host, _, name = api.removeprefix("https://").rstrip("/").partition("/v2/")
    parts = name.split("/")
    for end in range(len(parts), 0, -1):
        yield "/".join((host, *parts[:end]))
    yield host
    yield f"https://{host}"
    yield f"https://{host}/v2/"
    yield f"https://{host}/v1/"


def _from_entry(entry: Mapping[str, Any]) -> Credentials | None:
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Credentials("", Secret(token))
    try:
        text = base64.b64decode(str(entry.get("auth", "")), validate=True).decode()
    except ValueError:
        return None
    user, colon, secret = text.partition(":")
    return Credentials(user, Secret(secret.rstrip("\0"))) if colon and user else None


def _from_helper(helper: str, key: str, environ: Mapping[str, str]) -> Credentials | None:
    """Ask a credential helper of docker: the registry on its input, a JSON document back."""
    command = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise _helper_failed(command, key, "its name is not that of a helper")
    try:
        code, said = children.answer(
            [command, "get"], _HELPER_SECONDS, LARGEST_TOKEN, said=key.encode(), env=environ
        )
        # Helpers say on stdout that they know no credentials.
        if code and b"credentials not found" in said:
            return None
        document = {} if code else parse_object(said)
    except (OSError, ValueError) as error:
        raise _helper_failed(command, key, str(error)) from error
    if code:
        raise _helper_failed(command, key, f"it ended with exit code {code}")
    user, secret = document.get("Username"), document.get("Secret")
    if not (isinstance(user, str) and isinstance(secret, str)):
        raise _helper_failed(command, key, "its answer has no user and secret")
    return Credentials("" if user == _IDENTITY else user, Secret(secret))


def _helper_failed(command: str, key: str, reason: str) -> DownloadError:
    return DownloadError(
        f"the credential helper {command} gave no credentials",
        facts=(f"for: {key}", f"reason: {reason[:200]}"),
        hint=f"try it: echo {key} | {command} get",
    )
