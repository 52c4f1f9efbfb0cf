"""The command that writes the reference again; see the package."""

import sys

from ci.reference import FOLDERS, ROOT, made
from ci.reference.words import table

if sys.argv[1:] == ["--words"]:
    print(table(ROOT))
    sys.exit()
for folder in FOLDERS:
    for old in (ROOT / folder).iterdir():
        old.unlink()
for path, text in made().items():
    (ROOT / path).write_text(text, "utf-8")
print(f"made: {', '.join(FOLDERS)}")
