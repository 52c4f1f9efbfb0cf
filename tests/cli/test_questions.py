"""The questions before a download in real terminals of several widths."""

import sys
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.model_shelves import small_model
from support.program import COMMAND
from support.release_server import User
from support.screens import screen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="tmux")

QUESTION = "The CPU build b1 is a download of 3.0 MB. Download it? [y/N]"
SERVE = "nothing is installed yet. Install cpu-tuned (a download of 3.0 MB)? [y/N]"
WIDTHS = (40, 80, 200)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    """A release with two builds for the processor of about 3 MB each."""
    shop = FolderShop(tmp_path_factory.mktemp("two") / "shop")
    names = ("cpu", "cpu-tuned")
    builds = {name: shop.variant(shop.stand_in(f"b1-{name}", padding=2_780_000)) for name in names}
    shop.publish("b1", builds)
    return shop


@pytest.fixture
def user(shop: FolderShop, tmp_path: Path) -> User:
    made = shop.user(tmp_path / "home")
    return User(made.home, {**made.env, "TSUKU_LLM_ASK_ABOVE": "1MB", "HOME": str(tmp_path)})


def joined(lines: list[str]) -> str:
    """The words of a screen, however its lines are wrapped."""
    return " ".join(" ".join(lines).split())


def is_whole(lines: list[str], width: int) -> bool:
    """Tell whether no line is as wide as the terminal, which may have cut a word."""
    return all(len(line) < width for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_question_can_be_read_and_answered_with_no(
    user: User, tmp_path: Path, width: int
) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), user.env, columns=width) as seen:
        lines = seen.wait_for(lambda text: "[y/N]" in text)
        assert joined(lines).endswith(QUESTION)
        assert is_whole(lines, width), lines
        seen.keys("n", "Enter")
        assert seen.exit_code() == 0
        assert seen.lines[-1] == "nothing was changed"
    assert user.versions() == []


@pytest.mark.parametrize("width", WIDTHS)
def test_ctrl_c_at_a_question_ends_with_130_and_nothing_is_changed(
    user: User, tmp_path: Path, width: int
) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), user.env, columns=width) as seen:
        seen.wait_for(lambda text: "[y/N]" in text)
        seen.keys("C-c")
        assert seen.exit_code() == 130
        # A busy terminal may echo the key after the new line.
        assert seen.lines[-1].removeprefix("^C") == "error[interrupted]: stopped on request"
        assert "Traceback" not in seen.text
    assert user.versions() == []
    assert not list((user.home / "llm").rglob("*.part"))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_yes_installs_and_leaves_a_screen_that_can_be_read(
    user: User, tmp_path: Path, width: int
) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), user.env, columns=width, rows=60) as seen:
        seen.wait_for(lambda text: "[y/N]" in text)
        seen.keys("y", "Enter")
        assert seen.exit_code() == 0
        assert "Installed the CPU build b1." in joined(seen.lines)
    assert len(user.versions()) == 1


@pytest.mark.parametrize("key", ["n", "C-c"])
def test_the_question_of_serve_is_as_readable_at_40_columns(
    user: User, tmp_path: Path, key: str
) -> None:
    model = str(small_model(tmp_path / "m.gguf"))
    words = (*COMMAND, "serve", "--backend", "cpu-tuned", "-m", model)
    with screen(tmp_path / "t", words, user.env, columns=40) as seen:
        lines = seen.wait_for(lambda text: "[y/N]" in text)
        assert joined(lines).endswith(SERVE)
        assert is_whole(lines, 40), lines
        seen.keys(*([key, "Enter"] if key == "n" else [key]))
        assert seen.exit_code() == (0 if key == "n" else 130)
        assert ("error[" in seen.text) is (key == "C-c")
    assert user.versions() == []


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_a_start_without_any_build_asks_for_it_and_then_for_its_size(
    user: User, tmp_path: Path, command: str
) -> None:
    model = str(small_model(tmp_path / "m.gguf"))
    words = (*COMMAND, command, "-m", model)
    with screen(tmp_path / "t", words, user.env, columns=80) as seen:
        lines = seen.wait_for(lambda text: "[y/N]" in text)
        assert joined(lines).endswith(
            "nothing is installed yet. Install the build that fits this machine? [y/N]"
        )
        seen.keys("y", "Enter")
        assert QUESTION in joined(seen.wait_for(lambda text: text.count("[y/N]") == 2))
        seen.keys("n", "Enter")
        assert seen.exit_code() == 0
    assert user.versions() == []


def test_a_new_size_while_a_question_waits_takes_the_answer(user: User, tmp_path: Path) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), user.env, columns=200) as seen:
        seen.wait_for(lambda text: "[y/N]" in text)
        seen.resize(40)
        seen.keys("n", "Enter")
        assert seen.exit_code() == 0
        assert seen.lines[-1] == "nothing was changed"
    assert user.versions() == []
