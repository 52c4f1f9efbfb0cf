"""Access to registries: challenges, the files of docker and podman, and who gets a token."""

import base64
import json
from pathlib import Path

import pytest
from support.certificates import Authority
from support.downloads import BODY, Clock, artifact_at
from support.http_faults import Exchange, FaultServer, answer

from tsuku_llm.fetch import fetch, registry_mirror
from tsuku_llm.fetch.http.registry_login import (
    Challenge,
    Credentials,
    credentials_of,
    parse_challenge,
)
from tsuku_llm.fetch.places.mirrors import ARTIFACT, ROOT, TITLE, parse_manifest, parse_place
from tsuku_llm.ground.errors import (
    BodyError,
    ConfigError,
    DownloadError,
    HttpStatusError,
    TsukuError,
)
from tsuku_llm.ground.safe_text import Secret

API = "https://registry.example/v2/team/llm/"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (
            'Bearer realm="https://auth/token",service="reg",scope="repository:a/b:pull,push"',
            Challenge("bearer", "https://auth/token", "reg", "repository:a/b:pull,push"),
        ),
        ('bearer realm="https://a/" , scope=x', Challenge("bearer", "https://a/", "", "x")),
        ('Basic realm="a \\"b\\""', Challenge("basic", 'a "b"', "", "")),
        ("Basic", Challenge("basic", "", "", "")),
        ("Negotiate abc", None),
        ("", None),
        ('Bearer realm="unclosed', Challenge("bearer", "", "", "")),
    ],
)
def test_challenges(header: str, wanted: Challenge | None) -> None:
    assert parse_challenge(header) == wanted


@pytest.mark.parametrize(
    "address",
    [
        *("oci://host", "oci://host/", "oci://host/UPPER", "oci://host/a//b", "oci://host/a:b:c"),
        *("oci://user@host/a", "oci://host/a?x=1", "oci://host/../a", "https://host/a", "oci:///a"),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError):
        parse_place(address)


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"auths": {"registry.example": auth("a:b:c")}}, Credentials("a", Secret("b:c"))),
        ({"auths": {"https://registry.example/v1/": auth("a:b")}}, Credentials("a", Secret("b"))),
        (
            {"auths": {"registry.example": auth("a:b"), "registry.example/team": auth("c:d")}},
            Credentials("c", Secret("d")),
        ),
        ({"auths": {"registry.example": {"identitytoken": "t"}}}, Credentials("", Secret("t"))),
        ({"auths": {"other.example": auth("a:b")}}, None),
        ({"auths": {"registry.example": auth("no colon")}}, None),
        ({"auths": {"registry.example": {"auth": "***"}}}, None),
        ({"auths": {"registry.example": 7}}, None),
        ({"auths": 7}, None),
        ([], None),
        ("no JSON", None),
    ],
    ids=str,
)
def test_the_files_of_docker_and_podman(
    tmp_path: Path, document: object, wanted: Credentials | None
) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "config.json").write_text(text)
    assert credentials_of(API, {"DOCKER_CONFIG": str(tmp_path)}) == wanted
    assert credentials_of(API, {"REGISTRY_AUTH_FILE": str(tmp_path / "config.json")}) == wanted


def test_a_helper_is_a_name_and_no_path(tmp_path: Path) -> None:
    document = {"credHelpers": {"registry.example": "../../bin/sh"}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(DownloadError, match="gave no credentials"):
        credentials_of(API, {"DOCKER_CONFIG": str(tmp_path), "PATH": "/bin"})


def test_a_token_goes_to_the_registry_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = authority.issue("localhost").server_context()
    with (
        FaultServer([answer("200 OK", BODY)], context) as store,
        FaultServer([], context) as registry,
    ):
        there = f"https://localhost:{store.port}/blob"

        def serve(exchange: Exchange) -> None:
            if "authorization" not in exchange.request.headers:
                answer("401 No", WWW_Authenticate='Basic realm="x"')(exchange)
            else:
                answer("307 Temporary Redirect", Location=there)(exchange)

        registry.behaviours.append(serve)
        host = f"localhost:{registry.port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: auth("a:SECRET")}}))
        environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
        artifact = artifact_at("https://127.0.0.1:1/x")
        with Clock().network(environ, mirrors=(f"oci://{host}/llm",)) as network:
            assert fetch(artifact, tmp_path / "p", network).read_bytes() == BODY
        assert [request.path for request in registry.requests] == [
            f"/v2/llm/blobs/sha256:{artifact.sha256}"
        ] * 2
        assert "authorization" in registry.requests[1].headers
        (asked,) = store.requests
        assert "authorization" not in asked.headers


def test_a_host_that_a_registry_redirects_to_cannot_ask_for_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = authority.issue("localhost").server_context()
    with (
        FaultServer([], context) as thief,
        FaultServer([], context) as registry,
    ):
        there = f"https://localhost:{thief.port}"
        challenge = f'Bearer realm="{there}/token"'
        thief.behaviours.append(answer("401 No", WWW_Authenticate=challenge))
        moved = answer("307 Temporary Redirect", Location=f"{there}/blob")
        registry.behaviours.append(moved)
        host = f"localhost:{registry.port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: auth("a:SECRET")}}))
        environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
        artifact = artifact_at("https://127.0.0.1:1/x")
        with (
            Clock().network(environ, mirrors=(f"oci://{host}/llm",)) as network,
            pytest.raises(HttpStatusError),
        ):
            fetch(artifact, tmp_path / "p", network)
        assert [request.path for request in thief.requests] == ["/blob"]
        assert "authorization" not in thief.requests[0].headers


WALKS: dict[str, tuple[str, ...]] = {
    "nowhere": (),
    "another_path": ("https://localhost:{home}/other",),
    "another_port": ("https://localhost:{away}/token",),
    "another_host": ("https://127.0.0.1:{home}/token",),
    "with_a_user": ("https://u:p@localhost:{away}/token",),
    "upper_case": ("https://LOCALHOST:{home}/other",),
    "without_a_scheme": ("//localhost:{away}/token",),
    "by_two": ("https://localhost:{away}/one", "https://127.0.0.1:{home}/two"),
    "there_and_back": ("https://localhost:{away}/one", "https://localhost:{home}/two"),
}


@pytest.mark.parametrize("identity", [False, True], ids=["password", "identity"])
@pytest.mark.parametrize("walk", WALKS)
def test_N03_a_login_goes_to_its_own_host_alone(walk: str, identity: bool, tmp_path: Path) -> None:
    """A token server may send its readers elsewhere; the user's password stays with it."""
    authority = Authority(tmp_path / "ca")
    context = authority.issue("localhost").server_context()
    entry = {"identitytoken": "SECRET"} if identity else auth("a:SECRET")
    with (
        FaultServer([], context) as home,
        FaultServer([], context) as away,
        FaultServer([], context) as registry,
    ):
        steps = [each.format(home=home.port, away=away.port) for each in WALKS[walk]]

        def ask(exchange: Exchange) -> None:
            if len(home.requests) + len(away.requests) > len(steps):
                answer("200 OK", b'{"token": "t"}')(exchange)
            else:
                moved = steps[len(home.requests) + len(away.requests) - 1]
                answer("307 Temporary Redirect", Location=moved)(exchange)

        home.behaviours.append(ask)
        away.behaviours.append(ask)
        realm = f'Bearer realm="https://localhost:{home.port}/token"'
        registry.behaviours.append(answer("401 No", WWW_Authenticate=realm))
        name = f"localhost:{registry.port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {name: entry}}))
        environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
        with Clock().network(environ) as network, pytest.raises(TsukuError) as caught:
            registry_mirror(f"oci://{name}/llm", network)
        assert "SECRET" not in f"{caught.value} {caught.value.facts} {caught.value.__cause__}"
        own = {f"localhost:{home.port}"}
        for request in (*home.requests, *away.requests, *registry.requests[:1]):
            is_own = request.headers["host"] in own and not identity
            assert ("authorization" in request.headers) == is_own, (request, steps)


def test_N03_a_token_goes_to_no_other_port_of_its_registry(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = authority.issue("localhost").server_context()
    with (
        FaultServer([answer("401 No", WWW_Authenticate='Basic realm="x"')], context) as other,
        FaultServer([], context) as registry,
    ):
        moved = answer("307 Temporary Redirect", Location=f"https://localhost:{other.port}/x")
        wanted = answer("401 No", WWW_Authenticate='Basic realm="x"')
        registry.behaviours += [wanted, moved]
        name = f"localhost:{registry.port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {name: auth("a:SECRET")}}))
        environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
        with Clock().network(environ) as network, pytest.raises(HttpStatusError):
            registry_mirror(f"oci://{name}/llm", network)
        assert "authorization" in registry.requests[1].headers
        assert all("authorization" not in each.headers for each in other.requests)
        assert other.requests


@pytest.mark.parametrize(
    ("challenge", "kind"),
    [
        ('Bearer realm="http://127.0.0.1:1/token"', DownloadError),
        ('Bearer realm="file:///etc/passwd"', DownloadError),
        ("Bearer", DownloadError),
        ("Negotiate", HttpStatusError),
        ("Basic", HttpStatusError),
    ],
)
def test_a_registry_that_asks_for_something_else(
    tmp_path: Path, challenge: str, kind: type[TsukuError]
) -> None:
    authority = Authority(tmp_path / "ca")
    refusal = answer("401 No", WWW_Authenticate=challenge)
    with FaultServer([refusal], authority.issue("localhost").server_context()) as server:
        environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
        with Clock().network(environ) as network, pytest.raises(kind) as caught:
            registry_mirror(f"oci://localhost:{server.port}/llm", network)
    assert caught.value.exit_code == 4


def test_a_token_server_that_answers_nonsense(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = authority.issue("localhost").server_context()
    for body in (b"", b"[]", b'{"token": 7}', b'{"token": "a\\nb"}', b"{" * 9999, b"x" * 999_999):
        with (
            FaultServer([answer("200 OK", body)], context) as tokens,
            FaultServer([], context) as server,
        ):
            realm = f'Bearer realm="https://localhost:{tokens.port}/token"'
            server.behaviours.append(answer("401 No", WWW_Authenticate=realm))
            environ = {"SSL_CERT_FILE": str(authority.path), "DOCKER_CONFIG": str(tmp_path)}
            with Clock().network(environ) as network, pytest.raises(BodyError):
                registry_mirror(f"oci://localhost:{server.port}/llm", network)


LAYER = {"digest": f"sha256:{'0' * 64}", "size": 2, "annotations": {TITLE: "metadata/x.json"}}
GOOD = {"artifactType": ARTIFACT, "annotations": {ROOT: "r"}, "layers": [LAYER]}


@pytest.mark.parametrize(
    "change",
    [
        {"artifactType": "application/vnd.oci.image.config.v1+json"},
        {"artifactType": None},
        {"annotations": {}},
        {"annotations": None},
        {"layers": None},
        {"layers": [7]},
        {"layers": [{"digest": "sha256:x"}, {}]},
        {"layers": [{**LAYER, "size": "many"}]},
        {"layers": [{**LAYER, "annotations": 7}]},
    ],
    ids=str,
)
def test_manifests_of_something_else(change: dict[str, object]) -> None:
    place = parse_place("oci://host/llm")
    assert len(parse_manifest(json.dumps(GOOD).encode(), place).files) == 1
    for data in (json.dumps({**GOOD, **change}).encode(), b"", b"\xff", b"[" * 99_999):
        with pytest.raises(BodyError, match="is not a mirror that tsuku-llm made"):
            parse_manifest(data, place)


def test_a_layer_that_this_program_did_not_push_leads_to_nothing() -> None:
    strange = [{**LAYER, "annotations": {}}, {**LAYER, "digest": "sha512:00"}]
    document = {**GOOD, "layers": [*strange, LAYER]}
    found = parse_manifest(json.dumps(document).encode(), parse_place("oci://host/llm"))
    assert list(found.files) == ["metadata/x.json"]
