"""Newer metadata before an install, as users see it: a real server, flags and settings."""

import json
from pathlib import Path

import pytest
from support.program import Result
from support.release_server import ReleaseServer, User

ALWAYS = {"TSUKU_LLM_REFRESH": "always"}
REQUIRED = {"TSUKU_LLM_REFRESH": "required"}


@pytest.fixture
def late(shop: ReleaseServer, user: User) -> User:
    """A user whose metadata is from before b2, and from before b1 was revoked."""
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2-cpu"))})
    name = shop.simulator.targets.targets["releases/b1.json"].get_prefixed_paths()[0]
    document = json.loads(shop.simulator.files[f"targets/{name}"])
    shop.simulator.publish({**document, "revoked": True})
    shop.write()
    return user


def asked(shop: ReleaseServer) -> int:
    """How often the metadata was asked for so far."""
    return sum(line.path.startswith("/repository/") for line in shop.nginx.requests())


def test_T30_an_install_knows_of_a_revocation_since_the_last_refresh(late: User) -> None:
    refused = late.run("install", "--release", "b1", "--json", **ALWAYS)
    assert (refused.code, refused.document["error"]["code"]) == (5, "revoked")
    assert refused.document["error"]["hint"].startswith("take b2, the newest that is not revoked")
    done = late.run("install", "--json", **ALWAYS)
    assert (done.code, done.document["data"]["release"]) == (0, "b2"), done.stderr


def test_T30_a_benchmark_installs_nothing_that_was_revoked(late: User, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    assert late.run("install", TSUKU_LLM_REFRESH="never").code == 0
    assert late.run("uninstall", "--all").code == 0
    refused = late.run("bench", "-m", str(model), "--yes", "--offline", "--json")
    assert refused.code != 0, "what is not here cannot be measured offline"
    late.run("bench", "-m", str(model), "--yes", "--rounds", "1", **ALWAYS)
    assert [name.partition("-")[0] for name in late.versions()] == ["b2"]


def test_the_setting_decides_whether_an_install_asks(shop: ReleaseServer, late: User) -> None:
    before = asked(shop)
    assert late.run("config", "set", "llm.refresh", "sometimes").code == 2
    done = late.run("install", "--json", TSUKU_LLM_REFRESH="never")
    assert (done.document["data"]["release"], asked(shop)) == ("b1", before)
    done = late.run("install", "--json", TSUKU_LLM_REFRESH="auto")
    assert done.document["data"]["release"] == "b1", "its metadata is from a moment ago"
    assert asked(shop) == before


def test_offline_asks_no_host_for_anything(shop: ReleaseServer, late: User) -> None:
    before = len(shop.nginx.requests())
    refused = late.run("install", "--offline", "--json", **ALWAYS)
    assert (refused.code, refused.document["error"]["code"]) == (4, "download-failed")
    assert "leave out --offline" in refused.document["error"]["hint"]
    assert len(shop.nginx.requests()) == before
    assert not late.leftovers()
    assert late.run("install", TSUKU_LLM_REFRESH="never").code == 0
    before = len(shop.nginx.requests())
    assert late.run("install", "--offline", **ALWAYS).code == 0, "it is installed"
    assert len(shop.nginx.requests()) == before


def ended(result: Result) -> tuple[int, str]:
    return result.code, result.document["error"]["code"]


def test_T31_require_fresh_installs_nothing_without_an_answer(
    shop: ReleaseServer, late: User
) -> None:
    (shop.nginx.root / "repository").rename(shop.nginx.root / "gone")
    assert ended(late.run("install", "--json", **REQUIRED)) == (5, "stale-metadata")
    assert not late.versions()
    assert ended(late.run("install", "--offline", "--json", **REQUIRED)) == (2, "bad-usage")
    done = late.run("install", **ALWAYS)
    assert done.code == 0
    assert "newer metadata of test could not be fetched" in done.stderr
