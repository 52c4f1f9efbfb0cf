"""The modules of the collection against the real command line: they change once, and say why."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ansible_modules import Host, require_ansible
from support.convergence import SelfUpdating, self_updating
from support.repository import RepositorySimulator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SelfUpdating]:
    require_ansible()
    with self_updating(tmp_path_factory.mktemp("machine")) as machine:
        machine.publish("b1")
        yield machine


@pytest.fixture(scope="module")
def host(machine: SelfUpdating) -> Host:
    return Host(machine.user.env)


def test_a_build_is_installed_updated_held_and_removed(machine: SelfUpdating, host: Host) -> None:
    installed = host.changes("variant")
    assert installed["predicted"]["build"] == {**installed["build"], "id": None}
    assert (installed["build"]["release"], installed["selected"]) == ("b1", "cpu")
    assert installed["diff"] == {"before": None, "after": installed["build"]}
    # A newer release is no reason to change what is there.
    machine.publish("b2")
    assert not host.run("variant", backend="cpu")["changed"]
    newer = host.changes("variant", state="latest")
    assert (newer["diff"]["before"]["release"], newer["build"]["release"]) == ("b1", "b2")
    machine.publish("b3")
    held = host.changes("variant", state="held")
    assert held["diff"]["after"] == {"build": newer["build"], "hold": True}
    assert host.run("variant", state="latest")["changed"] is False
    info = host.run("variant_info")
    assert (info["release"], info["active"]["release"], info["selected"]) == ("b2", "b2", "cpu")
    assert [build["release"] for build in info["installed"]] == ["b1", "b2"]
    older = host.changes("variant", state="absent", release="b1")
    assert older["removed"] == older["predicted"]["removed"] == [info["installed"][0]["id"]]
    assert (machine.active(), len(machine.user.versions())) == ("b2", 1)


def test_a_failed_install_says_the_program_s_reason(host: Host) -> None:
    before = host.state()
    for params, code, reason in (
        ({"release": "b9"}, "unknown-request", "releases: b"),
        ({"backend": "rocm"}, "no-variant", "rocm"),
        ({"repository": "nowhere"}, "unknown-request", "repositories: official, test"),
    ):
        failed = host.run("variant", **params)
        assert failed["failed"]
        assert (failed["exit_code"], failed["error"]["code"]) == (3, code)
        assert reason in failed["msg"]
        assert failed["error"]["hint"] in failed["msg"]
    assert host.state() == before


def test_a_host_without_the_program_is_told_the_role(host: Host) -> None:
    failed = host.run("variant", executable="/nowhere/tsuku-llm")
    assert failed["error"]["code"] == "no-tool"
    assert "role tsuku.llm.tool" in failed["msg"]
    # Something else of that name.
    failed = host.run("variant", executable="/bin/echo")
    assert failed["error"]["code"] == "no-document"


def test_facts_are_those_of_the_drivers(host: Host) -> None:
    result = host.run("hardware_facts", snapshot=True)
    facts = result["ansible_facts"]
    assert (facts["tsuku_llm_gpu"], facts["tsuku_llm_gpus"]) == ("nvidia_h200", ["NVIDIA H200"])
    assert facts["tsuku_llm_platform"] == "linux-amd64"
    assert result["changed"] is False
    assert "NVIDIA H200" in json.dumps(result["snapshot"])


def test_settings_are_compared_as_the_program_reads_them(host: Host) -> None:
    wanted = {"min_age": 7, "llm.refresh": "never", "prefer": ["hip", "CPU"], "canary": True}
    result = host.changes("config", settings=wanted)
    assert result["settings"] == {
        "min_age": "7",
        "refresh": "never",
        "prefer": ["rocm", "cpu"],
        "canary": "true",
    }
    assert result["diff"]["before"] == dict.fromkeys(result["settings"])
    changed = host.changes("config", settings={"min_age": None, "canary": "no"})
    assert changed["diff"]["after"] == {"min_age": None, "canary": "false"}
    host.changes("config", settings={"prefer": None, "refresh": None, "canary": None})


def test_wrong_settings_are_refused_before_the_first_is_written(host: Host) -> None:
    before = host.state()
    for wrong, reason in (
        ({"min_age": "soon"}, "whole number of days"),
        ({"channel": "nowhere"}, "nowhere"),
        ({"colour": "red"}, "colour"),
    ):
        for check in (True, False):
            failed = host.run("config", check=check, settings={"update_check": False, **wrong})
            assert failed.get("failed"), failed
            assert reason in failed["msg"]
    assert host.state() == before


def test_a_password_in_a_setting_is_not_shown(host: Host) -> None:
    for password in ("sesame-1", "sesame-2"):
        result = host.changes(
            "config", settings={"mirror": f"https://me:{password}@mirror.invalid/"}
        )
        result.pop("invocation", None)  # newer versions of Ansible have none without -v
        result["predicted"].pop("invocation", None)
        assert password not in json.dumps(result)
    host.changes("config", settings={"mirror": None})


def test_a_repository_is_added_moved_and_removed(
    machine: SelfUpdating, host: Host, tmp_path: Path
) -> None:
    root = machine.shop.simulator.pinned_root.decode()
    here = machine.shop.simulator.url
    added = host.changes("repository", name="company", urls=[here], root_content=root)
    assert added["repository"] == added["predicted"]["repository"]
    assert added["repository"]["urls"] == [here]
    places = [here, "file:///srv/more"]
    moved = host.changes("repository", name="company", urls=places, root_content=root)
    assert moved["diff"]["after"]["urls"] == [here, "file:///srv/more/"]
    # What does not verify replaces nothing.
    before = host.state()
    wrong = tmp_path / "root.json"
    wrong.write_bytes(RepositorySimulator(here, name="other").pinned_root)
    for params in (
        {"root": str(wrong)},
        {"root_content": root, "fingerprint": "0" * 64},
        {"root": "/nowhere/root.json"},
    ):
        assert host.run("repository", name="company", urls=[here], **params).get("failed"), params
        assert host.state() == before
    fingerprint = hashlib.sha256(root.encode()).hexdigest()
    same = {"urls": places, "root_content": root, "fingerprint": fingerprint}
    assert host.run("repository", name="company", **same)["changed"] is False
    host.changes("repository", name="company", state="absent")


def test_a_server_is_started_once_and_again_for_other_arguments(
    machine: SelfUpdating, host: Host
) -> None:
    host.run("variant")
    machine.model.write_bytes(b"GGUF" + bytes(60))
    wanted = {"model": str(machine.model), "args": ["--port", "0"]}
    started = host.changes("server", **wanted)
    assert started["server"]["state"] == "running"
    assert started["diff"]["before"] is None
    other = host.changes("server", **{**wanted, "args": ["--port", "0", "-c", "512"]})
    assert other["server"]["pid"] != started["server"]["pid"]
    assert other["diff"]["after"]["arguments"][2:] == ["--port", "0", "-c", "512"]
    refused = host.run("server", name="more", **{**wanted, "args": ["--port", "70000"]})
    assert (refused["failed"], refused["exit_code"]) == (True, 2)
    secret = host.run("server", name="more", **{**wanted, "args": ["--api-key", "sesame"]})
    assert "--api-key-file" in secret["msg"]
    stopped = host.changes("server", state="absent")
    assert (stopped["server"], machine.servers()) == (None, {})


def test_a_bundle_is_made_once_and_installed_from(
    machine: SelfUpdating, host: Host, tmp_path: Path
) -> None:
    host.run("variant")
    path = tmp_path / "machines.bundle"
    snapshot = host.run("hardware_facts", snapshot=True)["snapshot"]
    # Two machines of one kind, as two hosts report them.
    wanted = {"path": str(path), "snapshots": [snapshot, snapshot], "program": False}
    made = host.changes("bundle", **wanted)
    assert made["builds"] == made["predicted"]["builds"]
    assert [build["variant"] for build in made["builds"]] == ["cpu"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made["sha256"]
    release = made["builds"][0]["release"]
    host.run("variant", state="absent")
    installed = host.changes("variant", bundle=str(path))
    assert installed["build"]["release"] == release
    # A newer release makes a new one; what is no bundle is never replaced.
    machine.publish("b3000")
    host.run("variant", state="latest")
    assert host.changes("bundle", **wanted)["diff"]["after"]["builds"][0]["release"] == "b3000"
    path.write_text("my notes", encoding="utf-8")
    failed = host.run("bundle", **wanted)
    assert (failed["error"]["code"], path.read_text("utf-8")) == ("bad-bundle", "my notes")
    host.changes("bundle", path=str(path), state="absent")


def test_an_unattended_update_that_goes_back_fails_with_its_reason(
    machine: SelfUpdating, host: Host
) -> None:
    host.run("config", settings={"release": None})
    host.run("variant")
    machine.serve()
    machine.publish("b4000")
    updated = host.changes("variant", state="latest", unattended=True)
    assert updated["build"]["release"] == updated["predicted"]["build"]["release"] == "b4000"
    assert machine.runs() == "b4000"
    machine.publish("b5000", ("err the flux is open", "exit 42"))
    failed = host.run("variant", state="latest", unattended=True)
    assert (failed["failed"], failed["exit_code"]) == (True, 9)
    assert failed["error"]["code"] == "update-rolled-back"
    assert (failed["build"]["release"], failed["update"]["tried"]) == ("b4000", "b5000")
    assert machine.runs() == "b4000"
    # It is marked here: the next run leaves it out.
    assert host.run("variant", state="latest", unattended=True)["changed"] is False
    info = host.run("variant_info")
    assert [each["release"] for each in info["rolled_back"]] == ["b5000"]
