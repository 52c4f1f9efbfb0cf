"""The part of the build that pyproject.toml cannot express: a README whose links are absolute.

The text in a wheel's metadata is shown where the repository's files are not.
"""

import re
import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PAGES = runpy.run_path(str(ROOT / "installer/tsuku_llm/_version.py"))["HOME_PAGE"]
LINK = re.compile(r"(!?)(\[(?:[^][]|\[[^][]*\])*\])\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(link: re.Match[str]) -> str:
    """Return a Markdown link with the address of its target in the public repository."""
    image, text, target = link.groups()
    # A picture needs the file itself, and not the page that shows it.
    return f"{image}{text}({PAGES}/{'raw' if image else 'blob'}/HEAD/{target})"


setup(
    long_description=LINK.sub(absolute, (ROOT / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
