"""The whole path with the real server, repacked as upstream packs it, and a tiny model."""

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ansible_modules import Host, require_ansible
from support.builds import REAL_SERVER, pack_real, pack_zip, real_build
from support.processes import gone, only_child
from support.release_server import ReleaseServer, User, release_server
from support.serving import serving
from support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]
STARTS = int(os.environ.get("TSUKU_LLM_TEST_STARTS", "3"))
"""How often the server is started and stopped; 100 on demand."""

ENDS = {signal.SIGTERM: 0, signal.SIGINT: 0, signal.SIGHUP: 129}
"""What the real server ends with on each signal: it does not know the last."""

NO_GPU = {"arguments": ["--device", "none"]}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseServer]:
    """Release b1 as upstream's tar.gz with a companion, b2 as a zip without a top folder."""
    folder = tmp_path_factory.mktemp("real")
    with release_server(folder / "shop") as server:
        archives = server.nginx.root / "archives"
        build, companion = pack_real(folder, tag="b1")
        for packed in (build, companion):
            packed.path.rename(archives / packed.path.name)
        server.publish("b1", {"cpu": server.variant(build, companion, **NO_GPU)})
        yield server


def complete(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"prompt": "hi", "n_predict": 4, "seed": 1})
    connection.request("POST", "/completion", body)
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def test_install_update_and_launch(shop: ReleaseServer, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    user = shop.user(tmp_path / "home")
    done = user.run("install")
    assert done.code == 0, done.stderr
    tree = Path(user.run("which").stdout.strip()).parent
    assert (tree / "libllama.so").is_symlink()
    assert (tree / "libllama.so").resolve().parent == tree
    assert (tree / "libvulkan.so.1").exists(), "the companion stands beside the build"
    assert answers(user, model)

    binaries = (real_build(tmp_path / "unpacked") / REAL_SERVER).parent
    packed = pack_zip(binaries, shop.nginx.root / "archives" / "llama-b2.zip")
    shop.publish("b2", {"cpu": shop.variant(packed, **NO_GPU)})
    with serving(user, "-m", str(model)) as (_, port):
        done = user.run("update")
        assert done.code == 0, done.stderr
        assert complete(port)["tokens_predicted"] == 4, "the old version still serves"
    assert "b2" in user.run("which").stdout
    assert len(user.versions()) == 2
    assert answers(user, model)


def answers(user: User, model: Path) -> bool:
    with serving(user, "-m", str(model)) as (_, port):
        return complete(port)["tokens_predicted"] == 4


def everything_below(*folders: Path) -> dict[str, int]:
    """Every name below these folders, and the size of each file."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {str(path): path.stat().st_size for path in found if path.is_file()}


def test_starts_and_stops_leave_nothing(shop: ReleaseServer, tmp_path: Path) -> None:
    """Start, completion and stop by each signal, again and again: no process, no file."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    user = User(user.home, {**user.env, "TMPDIR": str(scratch)})
    assert answers(user, model)
    before = everything_below(user.home, scratch)
    for number in range(STARTS):
        with serving(user, "-m", str(model)) as (child, port):
            server = only_child(child.pid)
            assert complete(port)["tokens_predicted"] == 4
            told = list(ENDS)[number % len(ENDS)]
            child.send_signal(told)
            assert child.wait() == ENDS[told]
            assert gone(server)
    assert everything_below(user.home, scratch) == before


def test_bench_info_measures_the_real_server(shop: ReleaseServer, tmp_path: Path) -> None:
    require_ansible()
    model = write_tiny_model(tmp_path / "tiny.gguf")
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    host = Host(user.env)
    before = host.state()
    speed = host.run("bench_info", model=str(model), rounds=1)
    assert (speed["changed"], speed["fastest"], speed["failed"]) == (False, "cpu", [])
    (measured,) = speed["results"]
    assert measured["generation"] > 0
    assert measured["prompt"] > 0
    assert host.state() == before
