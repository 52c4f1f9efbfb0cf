"""A download is asked about by what is really downloaded, and never larger than allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import run_on_terminal

from tsuku_llm.errors import Declined, TooLarge
from tsuku_llm.operations.choice import choose
from tsuku_llm.operations.consent import left_to_download
from tsuku_llm.operations.install import install
from tsuku_llm.operations.update import update


class Asked:
    """A user at a terminal who gives the same answer to every question."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.questions: list[str] = []

    def __call__(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    """Two releases with a build of about 3 MB each."""
    shop = FolderShop(tmp_path / "shop")
    for tag in ("b1", "b2"):
        packed = shop.stand_in(f"{tag}-cpu", padding=3_000_000)
        shop.publish(tag, {"cpu": shop.variant(packed)})
    return shop


def test_a_large_download_is_asked_about_with_its_size(shop: FolderShop, tmp_path: Path) -> None:
    asked = Asked(True)
    session = shop.session(tmp_path / "home", ask=asked, can_ask=True, ask_above=2_000_000)
    install(session, release="b1")
    assert asked.questions == ["The CPU build b1 is a download of 3.0 MB. Download it?"]
    # It is there: nothing is downloaded, and nothing asked.
    install(session, release="b1")
    assert len(asked.questions) == 1
    update(session)
    assert asked.questions[1:] == ["The CPU build b2 is a download of 3.0 MB. Download it?"]


def test_a_no_changes_nothing(shop: FolderShop, tmp_path: Path) -> None:
    home = tmp_path / "home"
    session = shop.session(home, ask=Asked(True), can_ask=True)
    install(session, release="b1")
    no = shop.session(home, ask=Asked(False), can_ask=True, ask_above=0)
    before = _files(home)
    with pytest.raises(Declined):
        update(no)
    assert _files(home) == before
    active = session.reader.active()
    assert active
    assert active.receipt.release == "b1"


def _files(home: Path) -> set[str]:
    kept = ("versions", "staging", "partials", "active.json")
    return {str(path) for name in kept for path in sorted((home / "llm" / name).rglob("*"))}


@pytest.mark.parametrize(
    "changes", [{"ask_above": 10**9}, {"agreed": True, "ask_above": 0}, {"can_ask": False}]
)
def test_a_small_one_yes_and_no_terminal_ask_nothing(
    shop: FolderShop, tmp_path: Path, changes: dict[str, object]
) -> None:
    asked = Asked(False)
    usual: dict[str, object] = {"ask": asked, "can_ask": True, "ask_above": 0}
    install(shop.session(tmp_path / "home", **{**usual, **changes}))
    assert asked.questions == []


@pytest.mark.parametrize("agreed", [True, False])
@pytest.mark.parametrize("can_ask", [True, False])
def test_more_than_allowed_is_refused_whatever_the_user_says(
    shop: FolderShop, tmp_path: Path, agreed: bool, can_ask: bool
) -> None:
    asked = Asked(True)
    usual = {"ask": asked, "can_ask": can_ask, "agreed": agreed}
    session = shop.session(tmp_path / "home", **usual, max_download=2_000_000)
    with pytest.raises(TooLarge) as refused:
        install(session)
    assert "3.0 MB" in refused.value.message
    assert refused.value.exit_code == 4
    assert (asked.questions, session.reader.installed()) == ([], ())


def test_what_an_earlier_run_left_counts_for_less(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home", max_download=2_000_000)
    choice = choose(session)
    best = choice.selection.selected
    whole = left_to_download(session, choice, best)
    [artifact] = best.variant.artifacts
    partials = session.store.partials
    partials.mkdir(parents=True, exist_ok=True)
    body = (shop.root / "archives" / "b2-cpu.tar.gz").read_bytes()
    (partials / f"{artifact.sha256}.part").write_bytes(body[:2_097_152])
    assert whole
    assert left_to_download(session, choice, best) == whole - 2_097_152
    assert install(session).outcome == "installed"


@pytest.mark.parametrize(("typed", "outcome"), [(b"n\n", None), (b"\x04", None), (b"y\n", "b2")])
def test_the_question_on_a_terminal(
    shop: FolderShop, tmp_path: Path, typed: bytes, outcome: str | None
) -> None:
    user = shop.user(tmp_path / "home")
    env = {**user.env, "TSUKU_LLM_ASK_ABOVE": "1MB"}
    code, said = run_on_terminal(typed, "install", env=env)
    assert code == 0
    assert "The CPU build b2 is a download of 3.0 MB. Download it? [y/N]" in said
    assert ("nothing was changed" in said) is (outcome is None)
    assert [name.partition("-")[0] for name in user.versions()] == ([outcome] if outcome else [])


def test_yes_answers_it_and_a_limit_ends_with_four(shop: FolderShop, tmp_path: Path) -> None:
    user = shop.user(tmp_path / "home")
    refused = user.run("install", "--yes", TSUKU_LLM_MAX_DOWNLOAD="1MB")
    assert refused.code == 4
    assert refused.stderr.startswith("downloading") is False
    assert "error[too-large]: the CPU build b2 is a download of 3.0 MB" in refused.stderr
    assert user.versions() == []
    env = {**user.env, "TSUKU_LLM_ASK_ABOVE": "1MB"}
    code, said = run_on_terminal(b"", "install", "--yes", env=env)
    assert (code, "[y/N]" in said) == (0, False)
