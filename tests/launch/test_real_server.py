"""The real server with a tiny model: gate, start, answer, stop, and what must not be loaded."""

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import launcher
from support.builds import (
    REAL_SERVER,
    REAL_TAG,
    compile_library,
    pack_real,
    pack_tar,
    pack_zip,
    real_build,
)
from support.processes import gone, only_child
from support.serving import told_port
from support.tiny_model import write_tiny_model

from ci.gpulab.model import write_model
from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.launch.plan.planning import _ONE_PATH, _PATH_LISTS, Build
from tsuku_llm.launch.run.gate import gate, list_devices

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]

CPU = ("--device", "none")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_build(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def launched(tree: Path, model: str, *, action: str = "supervise") -> list[str]:
    line = [sys.executable, launcher.__file__, action, str(tree), REAL_SERVER, "cpu"]
    return [*line, *CPU, "-m", model, "--host", "127.0.0.1", "--port", "0"]


@contextmanager
def serving(
    tree: Path, model: Path, *, action: str = "supervise"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A launcher in the model's folder whose server listens on a free port of its choice."""
    line = launched(tree, model.name, action=action)
    with subprocess.Popen(line, cwd=model.parent, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started, told_port(started)
        finally:
            started.kill()


def ask(port: int, method: str, path: str, body: object = None) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, json.dumps(body) if body else None)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("action", ["supervise", "replace"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_serves_and_stops(action: str, number: int, tree: Path, model: Path) -> None:
    with serving(tree, model, action=action) as (started, port):
        server = only_child(started.pid) if action == "supervise" else started.pid
        assert ask(port, "GET", "/health") == {"status": "ok"}
        answer = ask(port, "POST", "/completion", {"prompt": "ab", "n_predict": 4})
        assert re.fullmatch("[a-z]{4}", str(answer["content"]))
        assert "timings" in answer
        started.send_signal(number)
        assert started.wait() == 0
        assert gone(server)


def test_a_missing_model_is_named(tree: Path, tmp_path: Path) -> None:
    line = launched(tree, "absent.gguf")
    ended = subprocess.run(line, cwd=tmp_path, check=False, capture_output=True)
    # About two of a hundred such ends of the real server say nothing at all on a busy machine.
    assert ended.returncode == 7
    assert ended.stderr.decode().splitlines()[-2] == (
        "error[launch-failed]: the server did not start: "
        f"the model {tmp_path / 'absent.gguf'} does not exist"
    )


def test_a_port_in_use_is_named(tree: Path, model: Path) -> None:
    with serving(tree, model) as (_, port):
        line = [*launched(tree, model.name)[:-1], str(port)]
        ended = subprocess.run(line, cwd=model.parent, check=False, capture_output=True)
    assert ended.returncode == 7
    assert f"nothing can listen on 127.0.0.1 port {port}".encode() in ended.stderr


def test_an_argument_that_the_server_refuses_is_named(tree: Path) -> None:
    line = [*launched(tree, "x"), "--bogus"]
    ended = subprocess.run(line, check=False, capture_output=True)
    assert ended.returncode == 7
    assert ended.stderr.startswith(b"error: invalid argument: --bogus\n")
    assert b"the server does not know the argument --bogus" in ended.stderr


def test_the_gate_accepts_the_cpu_build(tree: Path) -> None:
    report = gate(Build(tree, REAL_SERVER, "cpu", CPU), {})
    assert re.match(r"version: \S+", report.version)


def test_the_gate_refuses_a_vulkan_build_without_a_driver(tree: Path, tmp_path: Path) -> None:
    nothing = {"VK_DRIVER_FILES": str(tmp_path / "none.json")}
    build = Build(tree, REAL_SERVER, "vulkan")
    assert list_devices(build, nothing).devices == ()
    with pytest.raises(GateFailed, match="lists no device") as caught:
        gate(build, nothing)
    assert caught.value.facts[0].startswith("VK_DRIVER_FILES=")


def test_every_option_that_takes_a_path_is_known(tree: Path) -> None:
    ended = subprocess.run([tree / REAL_SERVER, "--help"], check=False, capture_output=True)
    documented = set(
        re.findall(r"^(-.*?) (?:\S*FNAME|\S*FILE|PATH)\b", ended.stdout.decode(), re.MULTILINE)
    )
    options = {option for names in documented for option in re.split(r",\s*", names)}
    assert {"-m", "--mmproj", "--chat-template-file", "--models-dir"} <= options
    # Names of files inside a repository, not paths of this machine.
    assert options - {"-hff", "--hf-file", "-hffv", "--hf-file-v"} <= _ONE_PATH | _PATH_LISTS


WITNESS = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) {{ fclose(fopen("{witness}", "w")); }}
"""


@pytest.fixture
def evil(tmp_path: Path) -> tuple[Path, Path]:
    """A library that is called like a plugin, and the file that it makes when it is loaded."""
    witness = tmp_path / "loaded"
    code = WITNESS.format(witness=witness)
    return compile_library(tmp_path / "libggml-cpu-evil.so", code), witness


@pytest.mark.parametrize("name", ["GGML_BACKEND_PATH", "LD_PRELOAD"])
def test_X07_X08_foreign_code_is_not_loaded(name: str, tree: Path, evil: tuple[Path, Path]) -> None:
    library, witness = evil
    hostile = {name: str(library)}
    server = [tree / REAL_SERVER, "--list-devices"]
    subprocess.run(server, check=True, capture_output=True, env=hostile)
    assert witness.exists(), "the attack itself does not work"
    witness.unlink()
    list_devices(Build(tree, REAL_SERVER, "cpu"), hostile)
    assert not witness.exists()


def test_X06_a_plugin_in_the_users_folder_is_not_loaded(
    tree: Path, evil: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, witness = evil
    monkeypatch.chdir(library.parent)
    list_devices(Build(tree, REAL_SERVER, "cpu"), {})
    assert not witness.exists()


def test_upstreams_layout_runs_with_both_archives_in_one_folder(tmp_path: Path) -> None:
    build, companion = pack_real(tmp_path)
    assert build.root == f"llama-{REAL_TAG}"
    assert build.size == build.path.stat().st_size
    tree = tmp_path / "tree"
    tree.mkdir()
    _untar(build.path, tree)
    assert (tree / "libggml.so").readlink() == Path("libggml.so.0")
    assert str((tree / "libggml.so.0").readlink()).startswith("libggml.so.0.")
    packed = Build(tree, "llama-server", "cpu", CPU)
    with pytest.raises(GateFailed, match=r"libmtmd\.so\.0 is missing"):
        gate(packed, {})
    _untar(companion.path, tree)
    assert gate(packed, {}).version.startswith("version: ")


def _untar(archive: Path, tree: Path) -> None:
    line = ["tar", "-xzf", archive, "-C", tree, "--strip-components=1"]
    subprocess.run(line, check=True)


def test_the_same_files_give_the_same_archives(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("llama-server", "libx.so", "libx.so.1", "libx.so.1.2.3"):
        (flat / name).write_bytes(b"x")
    first = pack_tar(flat, tmp_path / "1.tar.gz", root="llama-b1")
    again = pack_tar(flat, tmp_path / "2.tar.gz", root="llama-b1")
    assert first.sha256 == again.sha256
    assert pack_zip(flat, tmp_path / "1.zip").sha256 == pack_zip(flat, tmp_path / "2.zip").sha256


def test_a_model_of_random_weights_is_served(tree: Path, tmp_path: Path) -> None:
    """What ci/gpu computes with: written without any library."""
    noise = write_model(tmp_path / "noise.gguf", layers=1, width=128, inner=256)
    with serving(tree, noise) as (started, port):
        answer = ask(port, "POST", "/completion", {"prompt": "ab", "n_predict": 4})
        assert re.fullmatch("[a-z]{4}", str(answer["content"]))
        started.send_signal(signal.SIGTERM)
        assert started.wait() == 0
