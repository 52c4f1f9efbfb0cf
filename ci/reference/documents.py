"""The page of all JSON documents, made from their schemas."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from ci.reference.commands import MADE
from ci.schemas import ANSWERS, CLIENT, answer_schema, file_of
from ci.schemas.keys import KEYS

ABOUT = """\
# JSON documents

With `--json`, each command prints one document on stdout, and nothing else there:

```json
{"format": 1, "command": "which", "status": "error", "exit_code": 7, "data": {}, "error": {"code": "not-installed", "message": "nothing is installed yet", "facts": [], "hint": "run: tsuku-llm install"}}
```

`data` has one of the objects that the table names for the command. It is empty after an error, unless the command has something to tell even then (`verify`, `doctor`, `serve`). `simulated` is there only if a recorded machine stands for this one. Each command has a [JSON Schema](https://json-schema.org); [release-file.json](../schemas/release-file.json) is that of a signed release file.

## Progress

With `--json`, and if stderr is not a terminal, progress is told there, in lines of one JSON object each:

```json
{"event": "downloading", "name": "llama-b11429-bin-ubuntu-x64.tar.gz", "done": 4194304, "total": 17664000, "unit": "B"}
```

`event` is `downloading` (at the begin, and then at most once a second for each file), `downloaded`, or what is done with the file then, such as `unpacking`, `checking`, `computing with` and `refreshing`. `done` counts bytes, and `total` is null if the size is not known. [progress-line.json](../schemas/progress-line.json) is the schema. Lines that do not begin with `{"event": ` are notes for people. `--quiet` leaves progress and notes out.

## What stays

`format` is 1. While it is 1:

- A key that is there stays, with its meaning and its type. A key that may be null may also become a value.
- New keys may come in every version, and new words for a text such as `state`: **ignore what you do not know**.
- `error.code` and `exit_code` are stable. `message`, `facts`, `hint`, and every `line`, `reason` and `text` are words for people and may change.

Anything else is a new `format`, and a new major version of tsuku-llm.

Sizes are in bytes, limits of time in seconds, and times in UTC, such as `2026-11-22T12:00:00Z`. What is not known is null.
"""
_NAMES = {"string": "text", "integer": "number", "boolean": "true or false"}


def page() -> str:
    """Return the page: the objects of each command, the common keys, and every object."""
    parts = [MADE, ABOUT, "## Keys with one meaning\n", "| key | what it is |", "|---|---|"]
    parts += [f"| `{name}` | {KEYS[name].__metadata__[0]} |" for name in KEYS]
    parts += ["", "## Commands\n", "| command | schema | objects |", "|---|---|---|"]
    objects: dict[str, Any] = {}
    for program, commands in ANSWERS.items():
        for command in commands:
            schema = answer_schema(command, program)
            objects |= schema["$defs"]
            words = command if program == CLIENT and command else f"{program} {command}".strip()
            file = file_of(command, program)
            kinds = [
                _type(each) for each in schema["properties"]["data"]["anyOf"] if "$ref" in each
            ]
            shown = ", ".join(each for each in kinds if "HelpAnswer" not in each)
            parts.append(f"| `{words}` | [{file}](../schemas/{file}) | {shown} |")
    parts += ["", "## Objects\n"]
    parts += [part for name in sorted(objects) for part in _object(name, objects[name])]
    return "\n".join(parts)


def _object(name: str, schema: Any) -> Iterator[str]:
    """Yield the heading of an object, what it is, and its keys."""
    yield f"### {name}\n"
    if schema.get("description"):
        yield _one_line(schema["description"]) + "\n"
    if "enum" in schema:
        yield ", ".join(f"`{each}`" for each in schema["enum"]) + "\n"
    if schema.get("properties"):
        yield "| key | type | what it is |\n|---|---|---|"
        for key, value in schema["properties"].items():
            yield f"| `{key}` | {_type(value)} | {_one_line(_meaning(value))} |"
        yield ""


def _type(schema: Any) -> str:
    """Return the type of a value in a few words, with links to objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if kind == "object":
        return f"texts to {_type(schema.get('additionalProperties') or {})}"
    return _NAMES.get(kind, kind or "any value")


def _meaning(schema: Any) -> str:
    """Return what a schema says of its value, if it is not null."""
    for each in (schema, *schema.get("anyOf", [])):
        if each.get("description"):
            return str(each["description"])
    return ""


def _one_line(text: str) -> str:
    """Return a docstring as Markdown in one line: its code marks are single."""
    words = " ".join(inspect.cleandoc(text).split())
    return re.sub(r"``", "`", words).replace("|", "\\|")
