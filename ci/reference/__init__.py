"""The reference: what is made from the code, and never edited by hand.

python -m ci.reference            write all of it again
python -m ci.reference --words    count the words that people wrote, by their readers
"""

from pathlib import Path

from ci import schemas
from ci.reference import commands, documents, errors, library, man_page, settings

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs/reference", "docs/schemas", "docs/man")
"""The folders in which every file is made."""


def made() -> dict[str, str]:
    """Return the text of each file of the reference, by its path in the repository."""
    pages = {
        "commands.md": commands.page("tsuku-llm"),
        "publisher-commands.md": commands.page("tsuku-publish"),
        "settings.md": settings.page(),
        "json.md": documents.page(),
        "errors.md": errors.page(),
        "api.md": library.page(),
    }
    return {
        **{f"docs/reference/{name}": text for name, text in pages.items()},
        **{
            f"docs/schemas/{name}": schemas.text_of(each)
            for name, each in schemas.schemas().items()
        },
        "docs/man/tsuku-llm.1": man_page.man_page(),
    }
