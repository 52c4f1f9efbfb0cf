"""Updates that fail while a server runs, repair, and room on the disk, as a user meets them."""

import hashlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.archives import Tar, tar_gz
from support.builds import Packed
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


def publish_hostile(shop: ReleaseServer, tag: str) -> None:
    """Publish a signed release whose archive would write outside its folder."""
    data = tar_gz([Tar(name="llama-server", data=b"x", mode=0o755), Tar(name="../evil", data=b"x")])
    path = shop.nginx.root / "archives" / f"{tag}.tar.gz"
    path.write_bytes(data)
    packed = Packed(path, hashlib.sha256(data).hexdigest(), len(data), "tar.gz", "")
    shop.publish(tag, {"cpu": shop.variant(packed)})


def cut_in_half(shop: ReleaseServer, tag: str) -> None:
    archive = publish(shop, tag)
    os.truncate(archive, archive.stat().st_size // 2)


def forge(shop: ReleaseServer, tag: str) -> None:
    """Publish without the keys."""
    publish(shop, tag)
    (newest,) = sorted(shop.nginx.root.glob("repository/metadata/*.targets.json"))[-1:]
    flip(newest)


NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}

FAILURES: dict[str, tuple[int, str, Callable[[ReleaseServer, str], object]]] = {
    "network": (4, "proxy", publish),
    "missing": (4, "http-status", lambda shop, tag: publish(shop, tag).unlink()),
    "cut": (4, "bad-body", cut_in_half),
    "digest": (5, "digest-mismatch", lambda shop, tag: flip(publish(shop, tag))),
    "signature": (5, "bad-metadata", forge),
    "archive": (5, "unsafe-archive", publish_hostile),
    "gate": (3, "no-variant", lambda shop, tag: publish(shop, tag, version=FAILS)),
}
"""How an update ends, and what the publisher does before it.

A full disk and a killed update have tests of their own below.
"""


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_update_leaves_the_old_version_active_and_serving(
    kind: str, shop: ReleaseServer, installed: User, tmp_path: Path
) -> None:
    (version,) = installed.versions()
    code, slug, spoil = FAILURES[kind]
    spoil(shop, "b2")
    env = NOWHERE if kind == "network" else {}
    with serving(installed) as (server, port):
        done = installed.run("update", "--json", **env)
        assert (done.code, done.document["error"]["code"]) == (code, slug), done.stderr
        assert_old_version_serves(installed, version, server, port)
    assert installed.leftovers() == []
    assert not list(tmp_path.rglob("evil"))
    with serving(installed) as (_, port):
        assert answers(port)


def test_C01_a_killed_update_leaves_the_old_version_active_and_serving(
    shop: ReleaseServer, installed: User
) -> None:
    (version,) = installed.versions()
    packed = shop.stand_in("b2-cpu", padding=900_000)
    shop.publish("b2", {"cpu": shop.variant(packed, folder="slow")})
    part = installed.data / "partials" / f"{packed.sha256}.part"
    with serving(installed) as (server, port):
        with subprocess.Popen([*COMMAND, "update"], env=dict(installed.env)) as update:
            while update.poll() is None and not (part.exists() and part.stat().st_size):
                os.sched_yield()
            update.kill()
        assert update.returncode == -signal.SIGKILL
        assert_old_version_serves(installed, version, server, port)
        shop.publish("b2", {"cpu": shop.variant(packed)})
        assert installed.run("update").code == 0
        assert answers(port), "the old files stay as long as somebody runs from them"
    assert installed.leftovers() == []


def assert_old_version_serves(
    user: User, version: str, server: subprocess.Popen[str], port: int
) -> None:
    assert answers(port)
    assert server.poll() is None
    assert user.versions() == [version]
    assert user.run("verify").code == 0
    assert version in user.run("which").stdout


@contextmanager
def installed_on_disk(shop: ReleaseServer, folder: Path, size: str) -> Iterator[User]:
    """A user who has b1 installed on a disk of this size."""
    publish(shop, "b1")
    with disk(folder, size) as small:
        user = shop.user(small / "home")
        assert user.run("install").code == 0
        yield user


@root
def test_C03_an_update_without_room_is_refused_and_does_not_stop_the_server(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    with installed_on_disk(shop, tmp_path / "disk", "4m") as user:
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
            size = f"{archive.stat().st_size / 1e6:.1f} MB"
            assert facts[0] == f"download: {size} (the archives: {size})"
            assert "unknown" in facts[1]
            assert len(shop.downloads()) == before, "nothing was fetched in vain"
            leave_half(user, archive)
            facts = user.run("update", "--json").document["error"]["facts"]
            half = f"{archive.stat().st_size / 2e6:.1f} MB"
            assert facts[0] == f"download: {half} (the archives: {size})"
            assert answers(port)
            assert server.poll() is None
        assert user.versions() == [version]
        assert user.run("verify").code == 0


@root
def test_C03_a_disk_that_fills_while_unpacking_does_not_stop_the_server(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    with installed_on_disk(shop, tmp_path / "disk", "3m") as user:
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


def test_install_force_repairs_what_verify_found(shop: ReleaseServer, installed: User) -> None:
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


def test_rollback_needs_no_network_and_update_returns(shop: ReleaseServer, installed: User) -> None:
    publish(shop, "b2")
    assert installed.run("update").code == 0
    before = len(shop.nginx.requests())
    assert "of b1" in installed.run("rollback", **NOWHERE).stdout
    with serving(installed) as (_, port):
        assert answers(port)
    assert "of b2" in installed.run("use", "b2", **NOWHERE).stdout
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


def test_L03_a_waiting_install_cleans_up_after_a_killed_one(
    shop: ReleaseServer, user: User
) -> None:
    packed = shop.stand_in("b2-cpu", padding=500_000)
    shop.publish("b2", {"cpu": shop.variant(packed, folder="slow")})
    assert user.run("repository", "refresh", "test").code == 0
    line = [*COMMAND, "install"]
    with subprocess.Popen(line, env=dict(user.env)) as first:
        part = user.data / "partials" / f"{packed.sha256}.part"
        while first.poll() is None and not (part.exists() and part.stat().st_size):
            os.sched_yield()
        first.send_signal(signal.SIGSTOP)  # else it may be done before the second one waits
        with subprocess.Popen(
            line, env=dict(user.env), stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr
            assert any("waiting for another" in said for said in second.stderr)
            first.kill()
            second.communicate()
    assert second.returncode == 0
    assert user.leftovers() == []
