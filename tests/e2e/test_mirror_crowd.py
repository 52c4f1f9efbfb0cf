"""Many machines that update at once from one mirror; nginx's log is the witness.

In the suite there are 10, and 200 with FUZZ_EXAMPLES=1000 (``ci/faults L09``).
"""

import json
import shutil
from collections import Counter
from pathlib import Path

from support.nginx import Nginx, serving
from support.program import _fork_server, environment, run_program
from support.release_server import NAME, ReleaseServer, release_server
from support.sweeps import stride

CLIENTS = 200 // stride(20)


def operator_of(shop: ReleaseServer, home: Path, mirror: Path) -> dict[str, str]:
    """The environment of the operator, who adds the publisher and makes the mirror."""
    user = shop.user(home)
    assert run_program("mirror", str(mirror), env=user.env).code == 0
    return dict(user.env)


def test_L09_machines_update_at_once_from_one_mirror(tmp_path: Path) -> None:
    with release_server(tmp_path / "shop") as shop:
        build, companion = shop.stand_in("b1-cpu"), shop.companion("b1-runtime")
        shop.publish("b1", {"cpu": shop.variant(build, companion)})
        mirror = tmp_path / "www" / "llm"
        operator = operator_of(shop, tmp_path / "operator", mirror)
        with serving(tmp_path / "www", tmp_path / "nginx") as nginx:
            first = machine(shop, nginx, tmp_path / "machines" / "0")
            assert run_program("install", env=first).code == 0
            homes = [tmp_path / "machines" / str(number) for number in range(CLIENTS)]
            for home in homes[1:]:
                shutil.copytree(homes[0], home, symlinks=True)
            shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2-cpu"), companion)})
            assert run_program("mirror", str(mirror), env=operator).code == 0
            before = len(nginx.requests())
            envs = [{**first, "TSUKU_HOME": str(home)} for home in homes]
            server = _fork_server()
            running = [server.hold(("update", "--json"), env, tmp_path) for env in envs]
            for each in running:
                each.release()
            ended = [each.end() for each in running]
            asked = nginx.requests()[before:]
    assert [each.code for each in ended] == [0] * CLIENTS, {each.stderr for each in ended}
    assert {json.loads(each.stdout)["data"]["release"] for each in ended} == {"b2"}
    kinds = Counter((kind_of(line.path), line.status) for line in asked)
    # Each machine: the next root, which is not there; what is new of the metadata; the release
    # file; and the archive that is new: the companion is installed.
    assert kinds == {
        ("root", 404): CLIENTS,
        ("timestamp", 200): CLIENTS,
        ("snapshot", 200): CLIENTS,
        ("targets", 200): CLIENTS,
        ("release file", 200): CLIENTS,
        ("archive", 200): CLIENTS,
    }


def kind_of(path: str) -> str:
    if path.startswith("/llm/sha256/"):
        return "archive"
    if path.startswith("/llm/targets/"):
        return "release file"
    return path.removesuffix(".json").rpartition(".")[2].rpartition("/")[2]


def machine(shop: ReleaseServer, nginx: Nginx, home: Path) -> dict[str, str]:
    """The environment of a machine that knows the mirror only."""
    home.mkdir(parents=True)
    env = environment(
        home,
        SSL_CERT_FILE=str(nginx.authority),
        NO_PROXY="*",
        TSUKU_LLM_MIRROR=f"{nginx.url}/llm/",
        TSUKU_LLM_REPOSITORY=NAME,
    )
    root = home.parent / "root.json"
    root.write_bytes(shop.simulator.pinned_root)
    added = run_program(
        "repository", "add", NAME, f"{nginx.url}/llm/", "--root", str(root), env=env
    )
    assert added.code == 0, added.stderr
    return env
