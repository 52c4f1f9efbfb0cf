"""The whole path with the real server, repacked as upstream packs it, and a tiny model."""

import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import REAL_SERVER, pack_real, pack_zip, real_build
from support.release_server import ReleaseServer, User, release_server
from support.serving import serving
from support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]
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
