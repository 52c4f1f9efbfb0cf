"""The command that writes ``docs/schemas`` and the reference in ``docs/api.md`` again."""

from ci.schemas import FOLDER, schemas, text_of
from ci.schemas.reference import PAGE, with_reference

FOLDER.mkdir(exist_ok=True)
for old in FOLDER.glob("*.json"):
    old.unlink()
for name, schema in schemas().items():
    (FOLDER / name).write_text(text_of(schema), "utf-8")
PAGE.write_text(with_reference(PAGE.read_text("utf-8")), "utf-8")
print(f"{FOLDER}: {len(schemas())} schemas")
