"""The check of every JSON document that a test sees against its published schema."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from ci.schemas import FOLDER, closed, file_of


@cache
def validator(command: str) -> Draft202012Validator:
    """The published schema, closed: a key that it does not name is an error here."""
    schema = json.loads((FOLDER / file_of(command)).read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(schema))


def checked(document: Any) -> Any:
    """Return a document of tsuku-llm that is as its schema says."""
    validator(document["command"] or "").validate(document)
    return document
