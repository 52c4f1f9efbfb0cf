"""The number of words that people wrote in the documents, by their readers."""

import re
from pathlib import Path

READERS = {
    "users": "README.md docs/index.md docs/guide.md docs/files.md docs/embedding.md docs/tasks/* "
    "docs/comparison.md docs/related-projects.md ci/reference/errors.toml",
    "operators": "docs/mirrors.md docs/bundles.md docs/fleet.md docs/rings.md",
    "publishers": "docs/releases.md docs/building.md",
    "security": "SECURITY.md docs/threat-model.md",
    "developers": "CONTRIBUTING.md docs/architecture.md ci/*.md ci/*/*.md",
    "decisions": "docs/decisions/*",
    "changelog": "CHANGELOG.md",
}
"""The files of each reader."""
MADE = re.compile(
    r"<!-- (?:\w+: )?made by.*?<!-- end -->|\n## Help texts\n.*|^\[[\w.-]+\]$|^[\w-]+ = ",
    re.DOTALL | re.MULTILINE,
)
"""What is not counted: what a command made, and the keys of TOML.

The files of ``docs/reference`` are made as a whole.
"""


def words(text: str) -> int:
    """Return the number of words that are not made by a command."""
    return len(MADE.sub("", text).split())


def table(root: Path) -> str:
    """Return a line for each reader, and the sum."""
    counted = {
        reader: sum(
            words(path.read_text("utf-8")) for glob in globs.split() for path in root.glob(glob)
        )
        for reader, globs in READERS.items()
    }
    lines = [f"{reader:<12} {count:>7,}" for reader, count in counted.items()]
    return "\n".join([*lines, f"{'sum':<12} {sum(counted.values()):>7,}"])
