"""Install, launch and update, as a user does it, from a signed repository behind nginx."""

import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.program import COMMAND
from support.release_server import ReleaseServer, User, is_root
from support.serving import serving

LOADER = "llama-server: error while loading shared libraries: libodd.so.7"
FAILS = (
    f"err {LOADER}: cannot open shared object file: No such file or directory",
    "exit 127",
)


def healthy(user: User) -> bool:
    with serving(user) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return bool(answer == {"status": "ok"})


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def newer(shop: ReleaseServer, tag: str = "b2") -> None:
    shop.publish(tag, {"cpu": shop.variant(shop.stand_in(f"{tag}-cpu"))})


def test_install_says_what_and_why_and_the_server_then_answers(
    shop: ReleaseServer, user: User
) -> None:
    done = user.run("install")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("Installed the CPU build b1.\n")
    assert "that fits this machine\n" in done.stdout
    assert "detected=" not in done.stdout
    requests = shop.downloads()
    assert sorted(line.path for line in requests) == [
        "/archives/b1-cpu.tar.gz",
        "/archives/b1-runtime.tar.gz",
    ], "one GET each, and nothing else"
    assert {line.method for line in requests} == {"GET"}
    (version,) = user.versions()
    tree = user.data / "versions" / version / "tree"
    assert {"llama-server", "libruntime.so.1"} <= {path.name for path in tree.iterdir()}
    assert user.run("which").stdout.strip() == str(tree / "llama-server")
    assert "b1" in user.run("list").stdout
    assert healthy(user)
    assert user.leftovers() == []


def test_an_installed_version_is_not_downloaded_again(shop: ReleaseServer, installed: User) -> None:
    before = len(shop.downloads())
    done = installed.run("install", "--json")
    assert done.document["data"]["outcome"] == "unchanged"
    assert len(shop.downloads()) == before


def test_update_moves_on_and_keeps_the_old_version(shop: ReleaseServer, installed: User) -> None:
    newer(shop)
    checked = installed.run("update", "--check", "--json")
    assert checked.code == 0, checked.stderr
    assert len(shop.downloads()) == 2
    assert installed.run("update").code == 0
    assert len(installed.versions()) == 2
    assert "b2" in installed.run("which").stdout
    assert healthy(installed)


def test_update_is_never_a_downgrade(shop: ReleaseServer, installed: User) -> None:
    newer(shop)
    assert installed.run("update").code == 0
    del shop.simulator.targets.targets["releases/b2.json"]
    shop.simulator.bump()
    shop.write()
    done = installed.run("update", "--json")
    assert done.document["data"]["outcome"] == "unchanged"
    assert "b2" in installed.run("which").stdout


def test_one_flipped_bit_in_an_archive_ends_with_5_and_changes_nothing(
    shop: ReleaseServer, installed: User
) -> None:
    newer(shop)
    archive = shop.nginx.root / "archives" / "b2-cpu.tar.gz"
    flip(archive, archive.stat().st_size // 2)
    done = installed.run("update", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "digest-mismatch")
    assert len(installed.versions()) == 1
    assert healthy(installed)
    flip(archive, archive.stat().st_size // 2)
    assert installed.run("update").code == 0, "without the fault the same command succeeds"


@pytest.mark.parametrize("name", ["timestamp", "2.snapshot", "2.targets"])
@pytest.mark.parametrize("part", [b'"sig"', b'"version"'], ids=["signature", "content"])
def test_one_flipped_bit_in_the_metadata_ends_with_5(
    shop: ReleaseServer, installed: User, name: str, part: bytes
) -> None:
    newer(shop)
    name = name.replace("2.", f"{shop.simulator.targets.version}.")
    path = shop.nginx.root / "repository" / "metadata" / f"{name}.json"
    start = path.read_bytes().index(part) + len(part)
    digit = re.search(rb"[0-9]", path.read_bytes()[start:])
    assert digit
    flip(path, start + digit.start())
    done = installed.run("update", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "bad-metadata"), done.stderr
    assert len(installed.versions()) == 1
    assert healthy(installed)


def test_without_a_network_install_ends_with_4_and_the_server_still_runs(
    shop: ReleaseServer, installed: User
) -> None:
    newer(shop)
    assert installed.run("repository", "refresh", "test").code == 0
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
    done = installed.run("install", "--channel", "stable", "--json", **nowhere)
    assert done.code == 4
    assert done.document["error"]["hint"]
    assert healthy(installed)


def test_dry_run_lists_everything_and_uses_no_network(shop: ReleaseServer, user: User) -> None:
    before = shop.nginx.requests()
    done = user.run("install", "--dry-run", "--json")
    assert done.code == 0
    data = done.document["data"]
    assert [a["url"].startswith("https://") for a in data["artifacts"]] == [True, True]
    assert all(len(a["sha256"]) == 64 and a["size"] > 0 for a in data["artifacts"])
    assert (data["outcome"], data["selected"]) == ("planned", "cpu")
    assert shop.nginx.requests() == before
    assert user.versions() == []


def test_two_installs_at_once_download_once(shop: ReleaseServer, user: User) -> None:
    children = [
        subprocess.Popen(
            [*COMMAND, "install"],
            env=dict(user.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [child.communicate(timeout=600)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert len(shop.downloads()) == 2, "two archives, each once"
    assert len(user.versions()) == 1


def test_ctrl_c_in_a_download_loses_nothing_and_the_next_run_resumes(
    shop: ReleaseServer, installed: User
) -> None:

    packed = shop.stand_in("b2-cpu", padding=2_000_000)
    shop.publish("b2", {"cpu": shop.variant(packed, folder="slow")})
    line = [*COMMAND, "update"]
    with subprocess.Popen(line, env=dict(installed.env), stderr=subprocess.PIPE) as child:
        part = installed.data / "partials" / f"{packed.sha256}.part"
        while child.poll() is None and not (part.exists() and part.stat().st_size):
            os.sched_yield()
        child.send_signal(signal.SIGINT)
        assert child.stderr
        output = child.stderr.read().decode()
    assert child.returncode == 130, output
    assert "Traceback" not in output
    assert len(installed.versions()) == 1
    assert installed.leftovers() == []
    assert healthy(installed)
    done = installed.run("update", "--json")
    assert done.code == 0, done.stderr
    assert [line.status for line in shop.downloads()][-1] == 206


def test_a_build_that_does_not_start_is_replaced_by_the_next(
    shop: ReleaseServer, user: User
) -> None:
    bad = shop.stand_in("b2-bad", version=FAILS)
    good = shop.stand_in("b2-good")
    shop.publish("b2", {"cpu-new": shop.variant(bad), "cpu": shop.variant(good)})
    assert user.run("repository", "refresh", "test").code == 0
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["variant"] == "cpu"
    (left,) = done.document["data"]["passed_over"]
    assert (left["variant"], left["slug"]) == ("cpu-new", "failed-start")
    assert "libodd.so.7" in left["text"]
    before = len(shop.downloads())
    assert user.run("install", "--json").document["data"]["outcome"] == "unchanged"
    assert len(shop.downloads()) == before, "what failed here is not fetched again"


def test_if_no_build_starts_every_reason_is_told(shop: ReleaseServer, installed: User) -> None:
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2-cpu", version=FAILS))})
    done = installed.run("update", "--json")
    assert done.code == 3
    assert "libodd.so.7" in done.document["error"]["facts"][0]
    assert healthy(installed)


@pytest.mark.parametrize("words", [("install", "--backend", "vulkan"), ("install",)])
def test_an_unavailable_backend_ends_with_3_and_every_reason(
    user: User, words: tuple[str, ...]
) -> None:
    done = user.run(*words, "--json", TSUKU_LLM_BACKEND="gpu")
    assert done.code == 3
    assert any(fact.startswith("cpu: ") for fact in done.document["error"]["facts"])
    assert user.versions() == []


def test_the_flag_overrides_the_environment_which_overrides_the_file(user: User) -> None:
    assert user.run("config", "set", "llm.backend", "vulkan").code == 0
    listed = user.run("config", "list", TSUKU_LLM_BACKEND="cpu").stdout
    assert "TSUKU_LLM_BACKEND" in listed
    assert user.run("install", "--dry-run").code == 3
    assert user.run("install", "--dry-run", TSUKU_LLM_BACKEND="cpu").code == 0
    again = user.run("install", "--dry-run", "--backend", "vulkan", TSUKU_LLM_BACKEND="cpu")
    assert again.code == 3


def test_an_unknown_backend_lists_the_known_ones(user: User) -> None:
    done = user.run("config", "set", "llm.backend", "quantum", "--json")
    assert done.code == 3
    assert "vulkan" in done.document["error"]["facts"][0]


def test_a_tampered_install_is_not_started(installed: User) -> None:
    server = Path(installed.run("which").stdout.strip())
    flip(server, 2000)
    done = installed.run("serve", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "tampered-install")


@pytest.mark.skipif(not is_root(), reason="only root can mount")
def test_a_read_only_disk_is_one_clear_error(user: User, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(disk)], check=True)
    try:
        done = user.run("install", "--json", TSUKU_HOME=str(disk), TSUKU_LLM_REPOSITORY="official")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert (done.code, done.document["error"]["code"]) == (6, "not-writable")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not is_root(), reason="only root can mount")
def test_a_full_disk_is_one_clear_error(shop: ReleaseServer, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:
        packed = shop.stand_in("b2-cpu", padding=3_000_000)
        shop.publish("b2", {"cpu": shop.variant(packed)})
        small = shop.user(disk / "home")
        done = small.run("install", "--json")
        leftovers = small.leftovers()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert (done.code, done.document["error"]["code"]) == (6, "no-space")
    assert leftovers == []
