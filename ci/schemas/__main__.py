"""The command that writes ``docs/schemas`` again."""

from ci.schemas import FOLDER, schemas, text_of

FOLDER.mkdir(exist_ok=True)
for old in FOLDER.glob("*.json"):
    old.unlink()
for name, schema in schemas().items():
    (FOLDER / name).write_text(text_of(schema), "utf-8")
print(f"{FOLDER}: {len(schemas())} schemas")
