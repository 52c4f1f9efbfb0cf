"""The web page of the real server, as a user sees it: it loads, and answers what is typed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browsers import browser
from support.builds import REAL_SERVER, real_build
from support.program import environment, run_program
from support.stored import install
from support.tiny_model import write_tiny_model

from tsuku_llm.store.store import Store

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]

TOKENS = 40
"""Tokens of the answer; each is a letter, and nothing else in the page has so many in a row."""

STATE = f"""
(() => {{
    const shown = document.body.innerText, field = document.querySelector('textarea');
    if (/[a-z]{{{TOKENS}}}/.test(shown)) return 'answered';
    if (shown.includes('No active conversation')) return 'too early';
    if (shown.includes('hello') || !field) return '';
    field.focus();
    return field.value ? 'typed' : 'empty';
}})()
"""
"""What the page shows: its text field is there before it can take a message."""


@pytest.fixture
def page_url(tmp_path: Path) -> Iterator[str]:
    """The page of a real server in the background, as ``serve`` tells it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    binaries = (real_build(tmp_path / "unpacked") / REAL_SERVER).parent
    files = {path.name: path.read_bytes() for path in binaries.iterdir()}
    install(Store(home / "llm"), files=files, links={}, arguments=("--device", "none"))
    model = write_tiny_model(tmp_path / "tiny.gguf")
    words = ("-m", str(model), "--port", "0", "-n", str(TOKENS))
    done = run_program("serve", "--detach", "--json", "--", *words, env=environment(home))
    assert done.code == 0, done.stderr
    yield str(done.document["data"]["page_url"])
    run_program("stop", env=environment(home))


def test_the_page_loads_and_completes_what_is_typed(page_url: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        page.go(page_url)
        reactions = {
            "empty": lambda: page.type("hello"),
            "typed": page.press_enter,
            "too early": lambda: page.go(page_url),
        }
        assert page.until(STATE, reactions) == "answered"
        assert page.evaluate("document.body.innerText.includes('hello')")
        assert page.evaluate("location.href").startswith(page_url)
