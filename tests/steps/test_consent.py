"""A download is asked about by what is really downloaded, and never larger than allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builds import Packed
from support.folder_shop import FolderShop
from support.model_shelves import small_model
from support.program import run_on_terminal
from support.sessions import changed

from tsuku_llm.ground.errors import Declined, HostUnreachable, NotInstalled, TooLarge
from tsuku_llm.steps.choosing.choice import choose
from tsuku_llm.steps.install.downloads import left_to_download
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.install.update import update
from tsuku_llm.steps.serve.fallback import wanted_version
from tsuku_llm.steps.session import Session


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
        packed = shop.stand_in(f"{tag}-cpu", padding=2_780_000)
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


# --- a build of the package index instead --------------------------------------------------


class Unreachable(FolderShop):
    """Upstream's host does not answer; a build of channel index is in the folder."""

    def url(self, packed: Packed, folder: str = "archives") -> str:
        return f"https://127.0.0.1:9/{folder}/{packed.path.name}"

    def session(self, home: Path, **changes: object) -> Session:
        # The index does not stand in behind a mirror, unless the hosts themselves are asked, too.
        return super().session(home, **{"mirror": (self.mirror, "origin"), **changes})


@pytest.fixture
def unreachable(tmp_path: Path) -> FolderShop:
    shop = Unreachable(tmp_path / "shop")
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1-cpu"))}, channels=("index",))
    gone = shop.stand_in("b2-cpu")
    shop.publish("b2", {"cpu": shop.variant(gone)})
    gone.path.unlink()
    return shop


def test_a_build_of_the_index_is_asked_about_before_it_stands_in(
    unreachable: FolderShop, tmp_path: Path
) -> None:
    asked = Asked(True)
    # Also a small one: another publisher made it.
    session = unreachable.session(tmp_path / "home", ask=asked, can_ask=True, ask_above=10**9)
    assert install(session).choice.channel == "index"
    [question] = asked.questions
    assert question.startswith("127.0.0.1:9 cannot be reached. Install the CPU build b1, built by ")
    assert "from the package index instead (a download of 0.0 MB)?" in question
    active = session.reader.active()
    assert active
    assert active.receipt.channel == "index"


def test_a_no_to_the_index_changes_nothing(unreachable: FolderShop, tmp_path: Path) -> None:
    home = tmp_path / "home"
    session = unreachable.session(home, ask=Asked(False), can_ask=True)
    before = _files(home)
    with pytest.raises(Declined) as declined:
        install(session)
    assert declined.value.exit_code == 0
    assert _files(home) == before
    assert not any("falling back" in note for note in session.user.note)  # type: ignore[attr-defined]


@pytest.mark.parametrize("changes", [{"agreed": True, "can_ask": True}, {"can_ask": False}])
def test_yes_and_no_terminal_take_the_index_with_a_note(
    unreachable: FolderShop, tmp_path: Path, changes: dict[str, object]
) -> None:
    asked = Asked(False)
    session = unreachable.session(tmp_path / "home", ask=asked, **changes)
    assert install(session).choice.channel == "index"
    assert asked.questions == []
    assert "127.0.0.1:9 cannot be reached: falling back to channel index" in session.user.note  # type: ignore[operator]


def test_the_limit_holds_for_the_index_after_a_yes_too(
    unreachable: FolderShop, tmp_path: Path
) -> None:
    session = unreachable.session(tmp_path / "home", ask=Asked(True), can_ask=True, max_download=1)
    with pytest.raises(TooLarge):
        install(session)
    assert session.reader.installed() == ()


def test_a_named_release_is_never_replaced_by_the_index(
    unreachable: FolderShop, tmp_path: Path
) -> None:
    asked = Asked(True)
    session = unreachable.session(tmp_path / "home", ask=asked, can_ask=True)
    with pytest.raises(HostUnreachable):
        install(session, release="b2")
    assert asked.questions == []


# --- serve and bench -----------------------------------------------------------------------


@pytest.fixture
def two_builds(tmp_path: Path) -> FolderShop:
    """A release with two builds for the processor of about 3 MB each."""
    shop = FolderShop(tmp_path / "two")
    names = ("cpu", "cpu-tuned")
    builds = {name: shop.variant(shop.stand_in(f"b1-{name}", padding=2_780_000)) for name in names}
    shop.publish("b1", builds)
    return shop


def test_a_no_to_serve_ends_with_0_and_nothing_is_installed(
    two_builds: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    install(two_builds.session(home, backend="cpu"))
    before = _files(home)
    asked = Asked(False)
    session = two_builds.session(home, backend="cpu-tuned", ask=asked, can_ask=True)
    with pytest.raises(Declined, match="nothing was changed or started") as declined:
        wanted_version(session)
    assert declined.value.exit_code == 0
    assert len(asked.questions) == 1
    assert "(a download of 3.0 MB)" in asked.questions[0]
    assert _files(home) == before
    # Without a terminal there is no question, and a start that cannot be made is an error.
    with pytest.raises(NotInstalled):
        wanted_version(changed(session, can_ask=False))


def test_serve_obeys_the_settings_for_downloads(two_builds: FolderShop, tmp_path: Path) -> None:
    home = tmp_path / "home"
    install(two_builds.session(home, backend="cpu"))
    asked = Asked(True)
    usual = {"backend": "cpu-tuned", "ask": asked, "can_ask": True}
    with pytest.raises(TooLarge) as refused:
        wanted_version(two_builds.session(home, **usual, max_download=2_000_000))
    assert refused.value.exit_code == 4
    # llm.fallback = auto asks nothing up to 100 MB, and llm.ask_above asks from its own size on.
    asked.questions.clear()
    asked.answer = False
    with pytest.raises(Declined):
        wanted_version(two_builds.session(home, **usual, fallback="auto", ask_above=2_000_000))
    assert asked.questions == ["The CPU build b1 is a download of 3.0 MB. Download it?"]
    assert len(two_builds.session(home).reader.installed()) == 1
    asked.questions.clear()
    found = wanted_version(two_builds.session(home, **usual, fallback="auto"))
    assert (found.receipt.variant, asked.questions) == ("cpu-tuned", [])
    # A yes to serve's own question is one question, whatever llm.ask_above says.
    store = two_builds.session(home).store
    store.remove(found.id)
    asked.answer = True
    assert wanted_version(two_builds.session(home, **usual, ask_above=0)) == found
    assert len(asked.questions) == 1


@pytest.mark.parametrize(
    ("typed", "shown"), [(b"n\n", "nothing was changed or started: "), (b"\x04", "nothing was")]
)
def test_a_no_to_serve_on_a_terminal(
    two_builds: FolderShop, tmp_path: Path, typed: bytes, shown: str
) -> None:
    user = two_builds.user(tmp_path / "home")
    words = ("serve", "--backend", "cpu-tuned", "-m", str(_model(tmp_path)))
    code, said = run_on_terminal(typed, *words, env=user.env)
    assert (code, "[y/N]" in said, shown in said) == (0, True, True), said
    assert "error[" not in said
    assert user.versions() == []


def test_a_no_to_bench_measures_what_is_there_or_ends_with_0(
    two_builds: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    user = two_builds.user(home)
    words = ("bench", "-m", str(_model(tmp_path)))
    code, said = run_on_terminal(b"n\nn\n", *words, env=user.env)
    assert code == 0, said
    assert said.count("[y/N]") == 2
    assert "Install it (a download of 3.0 MB) to measure it?" in said
    assert "nothing was changed or measured" in said
    assert user.versions() == []
    # Without a terminal nobody said no.
    assert user.run(*words).code == 7
    limited = {"TSUKU_LLM_MAX_DOWNLOAD": "1MB"}
    refused = user.run(*words, "--yes", **limited)
    assert refused.code == 7
    assert "llm.max_download allows 1.0 MB" in refused.stderr
    assert user.versions() == []


def _model(folder: Path) -> Path:
    return small_model(folder / "m.gguf")
