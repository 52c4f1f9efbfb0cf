"""Updates that fail while a server runs, repair, and room on the disk, as a user meets them."""

import hashlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.program import COMMAND
from support.release_server import ReleaseServer, User, is_root
from support.serving import serving

FAILS = ("err error while loading shared libraries: libodd.so.7: no such file", "exit 127")
root = pytest.mark.skipif(not is_root(), reason="only root can mount")


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return bool(answer == {"status": "ok"})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A memory disk of that size."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=755,size={size}", "none", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def publish(shop: ReleaseServer, tag: str, padding: int = 0, **steps: tuple[str, ...]) -> Path:
    """A release with one build; gives its archive."""
    packed = shop.stand_in(f"{tag}-cpu", padding=padding, **steps)
    shop.publish(tag, {"cpu": shop.variant(packed)})
    return packed.path


def leave_half(user: User, archive: Path) -> None:
    """What a download leaves that was interrupted."""
    content = archive.read_bytes()
    part = user.data / "partials" / f"{hashlib.sha256(content).hexdigest()}.part"
    part.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("fault", ["digest", "missing", "truncated", "gate"])
def test_a_failed_update_leaves_the_old_version_active_and_serving(
    fault: str, shop: ReleaseServer, installed: User
) -> None:
    (version,) = installed.versions()
    archive = publish(shop, "b2", version=FAILS) if fault == "gate" else publish(shop, "b2")
    spoil = {
        "digest": flip,
        "missing": Path.unlink,
        "truncated": lambda path: os.truncate(path, 99),
    }
    spoil.get(fault, lambda _: None)(archive)
    code = {"digest": 5, "missing": 4, "truncated": 4, "gate": 3}[fault]
    with serving(installed) as (server, port):
        done = installed.run("update", "--json")
        assert done.code == code, done.stderr
        assert answers(port)
        assert server.poll() is None
        assert installed.versions() == [version]
        assert installed.run("verify").code == 0
        assert version in installed.run("which").stdout
    assert installed.leftovers() == []
    with serving(installed) as (_, port):
        assert answers(port)


@root
def test_C03_an_update_without_room_is_refused_with_its_figures_and_leaves_the_server(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    publish(shop, "b1")
    with ExitStack() as stack:
        small = stack.enter_context(disk(tmp_path / "disk", "4m"))
        user = shop.user(small / "home")
        assert user.run("install").code == 0
        (version,) = user.versions()
        archive = publish(shop, "b2", padding=3_000_000)
        before = len(shop.downloads())
        with serving(user) as (server, port):
            done = user.run("update", "--json")
            assert (done.code, done.document["error"]["code"]) == (6, "no-space")
            facts = done.document["error"]["facts"]
            assert [fact.partition(":")[0] for fact in facts] == [
                "download",
                "unpacking",
                "installing",
                "folder",
            ]
            assert facts[0] == "download: 3.0 MB (the archives: 3.0 MB)"
            assert "unknown" in facts[1]
            assert len(shop.downloads()) == before, "nothing was fetched in vain"
            leave_half(user, archive)
            facts = user.run("update", "--json").document["error"]["facts"]
            assert facts[0] == "download: 1.5 MB (the archives: 3.0 MB)"
            assert answers(port)
            assert server.poll() is None
        assert user.versions() == [version]
        assert user.run("verify").code == 0


@root
def test_C03_a_disk_that_fills_while_it_unpacks_leaves_the_server(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    publish(shop, "b1")
    with ExitStack() as stack:
        small = stack.enter_context(disk(tmp_path / "disk", "3m"))
        user = shop.user(small / "home")
        assert user.run("install").code == 0
        (version,) = user.versions()
        # Zeros: small as an archive, so the reckoning beforehand lets it pass.
        build = shop.nginx.root.parent / "builds" / "b2-cpu"
        shop.stand_in("b2-cpu")
        (build / "zeros").write_bytes(bytes(6_000_000))
        packed = shop.stand_in("b2-cpu")
        shop.publish("b2", {"cpu": shop.variant(packed)})
        with serving(user) as (server, port):
            done = user.run("update", "--json")
            assert (done.code, done.document["error"]["code"]) == (6, "no-space")
            assert answers(port)
            assert server.poll() is None
        assert user.versions() == [version]
        assert user.leftovers() == []
        assert user.run("verify").code == 0


def test_force_repairs_what_verify_found(shop: ReleaseServer, installed: User) -> None:
    server = Path(installed.run("which").stdout.strip())
    flip(server)
    (server.parent / "libggml-evil.so").write_bytes(b"x")
    found = installed.run("verify", "--json")
    assert found.code == 5
    (told,) = found.document["data"]["versions"]
    assert told["differences"] == [
        "not part of the build: libggml-evil.so",
        "content changed: llama-server",
    ]
    assert installed.run("serve").code == 5
    before = len(shop.downloads())
    repair = told["repair"].split()[1:]
    done = installed.run(*repair, "--json")
    assert (done.code, done.document["data"]["outcome"]) == (0, "installed"), done.stderr
    assert len(shop.downloads()) == before + 2
    assert installed.run("verify").code == 0
    with serving(installed) as (_, port):
        assert answers(port)


def test_rollback_is_offline_and_update_comes_back(shop: ReleaseServer, installed: User) -> None:
    publish(shop, "b2")
    assert installed.run("update").code == 0
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
    before = len(shop.nginx.requests())
    assert "of b1" in installed.run("rollback", **nowhere).stdout
    with serving(installed) as (_, port):
        assert answers(port)
    assert "of b2" in installed.run("use", "b2", **nowhere).stdout
    assert len(shop.nginx.requests()) == before


def test_prune_and_uninstall_under_a_running_server(shop: ReleaseServer, installed: User) -> None:
    (old,) = installed.versions()
    with serving(installed) as (server, port):
        for tag in ("b2", "b3"):
            publish(shop, tag)
            assert installed.run("update").code == 0
        pruned = installed.run("prune", "--json").document["data"]
        assert (pruned["removed"], pruned["in_use"]) == ([], [old])
        refused = installed.run("uninstall", "b1", "--json")
        assert (refused.code, refused.document["error"]["code"]) == (6, "in-use")
        assert any("llama-server" in fact for fact in refused.document["error"]["facts"])
        assert answers(port)
        assert server.poll() is None
    assert installed.run("prune", "--json").document["data"]["removed"] == [old]


def test_L04_an_install_waits_for_another_and_names_one_that_is_stopped(
    shop: ReleaseServer, user: User
) -> None:
    packed = shop.stand_in("b2-cpu", padding=500_000)
    shop.publish("b2", {"cpu": shop.variant(packed, folder="slow")})
    assert user.run("repository", "refresh", "test").code == 0
    line = [*COMMAND, "install"]
    with subprocess.Popen(line, env=dict(user.env), stderr=subprocess.PIPE) as first:
        part = user.data / "partials" / f"{packed.sha256}.part"
        while first.poll() is None and not (part.exists() and part.stat().st_size):
            os.sched_yield()
        first.send_signal(signal.SIGSTOP)
        try:
            done = user.run("install", TSUKU_LLM_LOCK_TIMEOUT="1")
        finally:
            first.send_signal(signal.SIGKILL)
    assert done.code == 6
    assert f"waiting for another tsuku-llm (process {first.pid})" in done.stderr
    assert "error[lock-timeout]: " in done.stderr
    assert f"kill -CONT {first.pid}" in done.stderr
    assert str(user.data / "locks") in done.stderr
    assert user.run("install").code == 0, "the lock of a killed process is free"
