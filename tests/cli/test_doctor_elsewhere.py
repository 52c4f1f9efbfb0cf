"""``doctor`` for a build of a repository, channel or release that is not the default one."""

from pathlib import Path
from typing import Any

import pytest
from support.folder_shop import FolderShop
from support.program import Result
from support.release_server import NAME, User


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    """A repository of a company: b1 runs everywhere, and b2 of ``nightly`` on no machine."""
    shop = FolderShop(tmp_path / "shop")
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1"))})
    newer = shop.variant(shop.stand_in("b2")) | {"requires": {"glibc": "99.0"}}
    shop.publish("b2", {"cpu": newer}, channels=("nightly",))
    return shop


@pytest.fixture
def user(shop: FolderShop, tmp_path: Path) -> User:
    """A user who installed b1 of the company, and names no repository in the settings."""
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", NAME).code == 0
    assert user.run("install").code == 0
    env = {key: value for key, value in user.env.items() if key != "TSUKU_LLM_REPOSITORY"}
    return User(user.home, env)


def examined(user: User, *words: str) -> tuple[Result, dict[str, Any]]:
    done = user.run("doctor", *words, "--json")
    assert done.document, done.stderr
    return done, done.document["data"]


def test_doctor_judges_the_active_build_by_its_own_release(user: User, shop: FolderShop) -> None:
    done, told = examined(user)
    assert done.code == 0, done.stderr
    assert (told["repository"], told["release"], told["channel"]) == (NAME, "b1", "stable")
    assert told["variant"] == "cpu"
    lines = user.run("doctor").stdout.splitlines()
    assert any(f"for cpu (cpu) of b1, repository {NAME}, channel stable" in line for line in lines)
    # A newer release says nothing about the one that is in use.
    newest = shop.variant(shop.stand_in("b3")) | {"requires": {"npu": "2"}}
    shop.publish("b3", {"cpu": newest})
    assert user.run("repository", "refresh", NAME).code == 0
    done, told = examined(user)
    assert (done.code, told["release"]) == (0, "b1")


def test_doctor_takes_another_channel_or_repository(user: User) -> None:
    done, told = examined(user, "--channel", "nightly")
    assert (done.code, told["release"], told["channel"]) == (3, "b2", "nightly")
    assert told["repository"] == NAME
    assert told["broken"]["stage"] == "requirement"
    _, told = examined(user, "--repository", "official")
    assert (told["repository"], told["release"]) == ("official", "b11429")
    done = user.run("doctor", "--channel", "weekly", "--json")
    assert (done.code, done.document["error"]["code"]) == (3, "unknown-request")
    done = user.run("doctor", "--repository", "nobody", "--json")
    assert (done.code, done.document["error"]["code"]) == (3, "unknown-request")


def test_doctor_works_after_the_builds_repository_was_removed(user: User) -> None:
    assert user.run("repository", "remove", NAME).code == 0
    done, told = examined(user)
    assert told["repository"] == "official"
    assert f"is not compared with its release: there is no repository '{NAME}'" in done.stderr
    assert "removed" in str(told["installed"])


def test_doctor_of_a_backend_that_is_not_installed_looks_where_the_active_build_is_from(
    user: User,
) -> None:
    done, told = examined(user, "--backend", "cuda")
    assert (done.code, told["repository"]) == (3, NAME)
    assert told["links"][5]["fault"]["text"] == "there is no cuda build for linux-amd64"


def test_a_backend_that_does_not_exist_is_told_without_a_note(user: User) -> None:
    done = user.run("doctor", "--backend", "quantum")
    assert done.code == 3
    assert "there is no backend or variant 'quantum'" in done.stderr
    assert "is not compared" not in done.stderr
