"""The check of every JSON document that a test sees against its published schema."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from ci.schemas import CLIENT, FOLDER, closed, file_of
from tsuku_llm.cli.program import wants_json


@cache
def validator(command: str, program: str = CLIENT) -> Draft202012Validator:
    """The published schema, closed: a key that it does not name is an error here."""
    schema = json.loads((FOLDER / file_of(command, program)).read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(schema))


def checked(document: Any, program: str = CLIENT) -> Any:
    """Return a program's document that is as its schema says."""
    validator(document["command"] or "", program).validate(document)
    return document


def read(text: str, program: str = CLIENT) -> Any:
    """The document that a program has written, checked."""
    return checked(json.loads(text), program)


def check_output(arguments: Sequence[str], text: str, program: str = CLIENT) -> None:
    """Check what a program has written to stdout, if the arguments ask for a document."""
    if wants_json(arguments) and text:
        read(text, program)
