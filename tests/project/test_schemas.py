"""The published JSON Schemas: one for each command, one meaning for each key.

``support.schemas`` checks every document that the other tests see.
"""

import json
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator, ValidationError
from support.schemas import checked, validator

from ci.schemas import (
    ANSWERS,
    CLIENT,
    FOLDER,
    PUBLISHER,
    answer_schema,
    properties,
)
from ci.schemas.keys import KEYS
from tsuku_llm.cli.program import program
from tsuku_publish.cli.main import group as publisher

RELEASES = FOLDER.parents[1] / "manifests/targets/releases"


def commands(group: click.Group, above: str = "") -> list[str]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found.append(f"{above}{name}")
        if isinstance(command, click.Group):
            found += commands(command, f"{name} ")
    return found


@pytest.mark.parametrize(("name", "group"), [(CLIENT, program), (PUBLISHER, publisher)])
def test_every_command_has_a_schema_and_every_schema_a_command(
    name: str, group: click.Group
) -> None:
    assert set(ANSWERS[name]) - {""} == set(commands(group))


def test_a_key_means_the_same_in_every_document() -> None:
    meanings: dict[str, set[str]] = {}
    for program_name, of_program in ANSWERS.items():
        for command in of_program:
            for name, schema in properties(answer_schema(command, program_name)):
                if name in KEYS:
                    meanings.setdefault(name, set()).add(meaning(schema))
    assert meanings == {name: {KEYS[name].__metadata__[0]} for name in KEYS}


def meaning(schema: dict[str, Any]) -> str:
    """What a schema of a value says that it is, if it is not null."""
    (value,) = (each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    return str(value.get("description", value))


def document(**changes: Any) -> dict[str, Any]:
    envelope = {"format": 1, "command": "which", "status": "ok", "exit_code": 0, "error": None}
    return {**envelope, "data": {"path": "/x", "unsigned": None}, **changes}


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"path": 3}},
        {"data": {"path": "/x", "unsigned": None, "new": 1}},
        {"data": {"other": "/x"}},
        {"format": 2},
        {"status": "fine"},
        {"error": "text"},
        {"exit_code": None},
        {"extra": 1},
    ],
)
def test_a_document_that_is_not_as_its_schema_says_is_refused(wrong: dict[str, Any]) -> None:
    checked(document())
    with pytest.raises(ValidationError):
        checked(document(**wrong))


def test_a_program_of_today_reads_a_document_of_tomorrow() -> None:
    schema = json.loads((FOLDER / "which.json").read_text("utf-8"))
    later = document(data={"path": "/x", "unsigned": None, "new": 1}, new=2)
    Draft202012Validator(schema).validate(later)
    with pytest.raises(ValidationError):
        validator("which").validate(later)


@pytest.mark.parametrize("path", sorted(RELEASES.glob("*.json")), ids=lambda path: path.name[-14:])
def test_the_release_files_of_the_repository_are_as_their_schema_says(path: Any) -> None:
    schema = json.loads((FOLDER / "release-file.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)
    release = json.loads(path.read_text("utf-8"))
    check.validate(release)
    with pytest.raises(ValidationError):
        check.validate({**release, "published": "today"})
