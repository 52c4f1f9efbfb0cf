"""The site of the documents: mkdocs builds it, and no link leads nowhere."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci.site_links import on_page_markdown

ROOT = Path(__file__).parents[2]


def test_mkdocs_builds_the_site_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "The GPU is not used" in (tmp_path / "tasks/gpu/index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "../README.md", "https://tsuku.dev/tsuku-llm/blob/HEAD/README.md"),
        ("tasks/gpu.md", "../../ci/faults", "https://tsuku.dev/tsuku-llm/blob/HEAD/ci/faults"),
        ("tasks/gpu.md", "../guide.md#install", "../guide.md#install"),
        ("guide.md", "tasks/gpu.md", "tasks/gpu.md"),
    ],
)
def test_only_links_out_of_the_site_become_addresses(page: str, link: str, expected: str) -> None:
    of_the_page = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    changed = on_page_markdown(f"a [text]({link})", page=of_the_page)
    assert changed == f"a [text]({expected})"
