"""A hook of mkdocs: links that leave ``docs/`` go to the repository."""

import posixpath
import re
from typing import Any

REPOSITORY = "https://tsuku.dev/tsuku-llm/blob/HEAD"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with each link to a file outside of ``docs/`` as an address."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def address(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        return found[0] if path.startswith("docs/") else f"]({REPOSITORY}/{path})"

    return re.sub(r"\]\((\.\.?/[^)\s]+)\)", address, markdown)
