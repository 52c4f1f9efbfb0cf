"""What the documents promise exists: commands, flags, settings, variants, exit codes, files."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tsuku_llm.ground.errors
from ci.faultlab.rows import load_rows
from ci.reference import FOLDERS, made
from ci.reference.commands import PROGRAMS
from tsuku_llm import __version__
from tsuku_llm.catalog.manifest import Release, Variant, parse_release
from tsuku_llm.config.keys import KEYS
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.own_name import PROGRAM
from tsuku_llm.trust import VerifiedBytes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ci/**/*.md")])

OF_THE_TESTS = {
    "TSUKU_LLM_BASES",
    "TSUKU_LLM_NINETY_DAYS",
    "TSUKU_LLM_HALF_A_YEAR",
    "TSUKU_LLM_PROGRAM",
    "TSUKU_LLM_REQUIRE_TOOLS",
    "TSUKU_LLM_FAKE_HARDWARE",
    "TSUKU_LLM_STRICT",
}
OF_THE_PUBLISHER = {
    *("TSUKU_LLM_PASSPHRASE", "TSUKU_LLM_PASSPHRASE_FILE", "TSUKU_LLM_SIGNERS"),
    "TSUKU_PUBLISH_DATA",
}


def test_a_variable_of_a_printed_test_run_is_not_forgotten() -> None:
    """The tests delete what they do not know: a play of half a year was one of four days."""
    kept = (ROOT / "tests" / "conftest.py").read_text("utf-8")
    found = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"(TSUKU_\w+)=\S+ python -m pytest", document.read_text("utf-8"))
    }
    assert found
    assert not [name for name in found if f'"{name}"' not in kept]


in_every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def text_of(document: Path) -> str:
    return document.read_text("utf-8")


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(table: str) -> list[list[str]]:
    """The cells of a Markdown table, without its two head lines."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(text: str) -> Iterator[str]:
    """What a reader may copy: lines of fenced blocks, and spans in a line."""
    fenced = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for block in fenced.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", fenced.sub("", text))


# --- the command line --------------------------------------------------------------------


GROUPS = {group.name: group for group in PROGRAMS.values()}


def invocations(text: str) -> list[str]:
    """Every call of a program of ours, up to what is the server's own."""
    found = []
    for snippet in code(text):
        for part in re.split(r"&&|\||;| # ", snippet):
            # A call may begin with settings of the environment.
            words = re.sub(r"^(?:[A-Z_]+=\S* +)+", "", part.strip()).split(" ")
            words[0] = words[0].rpartition("/")[2]
            if words[0] in GROUPS and len(words) > 1:
                found.append(" ".join(words).partition(" -- ")[0])
    return found


def documented() -> list[tuple[str, str]]:
    return [
        (document.name, call) for document in DOCUMENTS for call in invocations(text_of(document))
    ]


@pytest.mark.parametrize(("document", "call"), sorted(set(documented())))
def test_a_documented_call_is_understood(document: str, call: str) -> None:
    command, rest = find_command(shlex.split(call))
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in rest:
        flag = word.strip("[]").partition("=")[0]
        if flag.startswith("--"):
            assert flag in known | {"--help"}, f"{document}: {call}"


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    name, *rest = words
    command: click.Command = GROUPS[name]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        alternatives = [command.get_command(click.Context(command), n) for n in name.split("|")]
        assert None not in alternatives, f"there is no command {name!r} in: {' '.join(words)}"
        command = alternatives[0] or command
    return command, rest


def test_the_reference_is_what_its_command_makes() -> None:
    kept = {
        path.relative_to(ROOT).as_posix(): text_of(path)
        for folder in FOLDERS
        for path in (ROOT / folder).iterdir()
    }
    assert kept == made(), "is the change meant? write it again: python -m ci.reference"


@in_every_document
def test_a_documented_setting_exists(document: Path) -> None:
    names = {key.name for key in KEYS}
    variables = {key.variable for key in KEYS} | OF_THE_TESTS | OF_THE_PUBLISHER
    for snippet in code(text_of(document)):
        assert set(re.findall(r"(?<![-.])\bllm\.[a-z_]+", snippet)) <= names, snippet
        assert set(re.findall(r"\bTSUKU_(?:LLM|PUBLISH)_[A-Z_]+", snippet)) <= variables, snippet


# --- the README's tables -----------------------------------------------------------------


def test_the_table_of_variants_matches_the_manifest() -> None:
    heading = re.search(r"the stable release .*?, v([0-9.]+) \((b\d+)\)", section("Variants"))
    assert heading
    release = published(heading[2])
    assert release.version == heading[1]
    assert rows(section("Variants")) == variant_rows(release), "\n" + as_table(release)


def published(name: str) -> Release:
    (path,) = (ROOT / "manifests" / "targets").rglob(f"*.{name}.json")
    return parse_release(VerifiedBytes(path.read_bytes()))


def variant_rows(release: Release) -> list[list[str]]:
    return [
        [f"`{name}`", ", ".join(map(described, platform.variants))]
        for name, platform in sorted(release.platforms.items())
    ]


def described(variant: Variant) -> str:
    size = variant.download_size
    return f"`{variant.name}`" + (f" {round(size / 1e6)} MB" if size else "")


def as_table(release: Release) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in variant_rows(release))


def test_the_table_of_exit_codes_matches_the_error_tree() -> None:
    of_errors = {
        error.exit_code
        for error in vars(tsuku_llm.ground.errors).values()
        if isinstance(error, type) and issubclass(error, TsukuError)
    }
    listed = {int(code) for row in rows(section("Exit codes")) for code in row[0].split(",")}
    assert listed == of_errors | {0, 1, 129, 143}


def test_the_architecture_names_every_room() -> None:
    package = ROOT / "installer" / "tsuku_llm"
    sources = [*package.glob("*.py"), *(path.parent for path in package.glob("*/__init__.py"))]
    rooms = {path.stem for path in sources if not path.name.startswith("_")}
    text = text_of(ROOT / "docs" / "architecture.md")
    assert {row[0].strip("`") for row in rows(text)} == rooms


# --- the table of faults -----------------------------------------------------------------


def test_the_documented_table_has_every_row_and_none_failed() -> None:
    text = text_of(ROOT / "ci" / "faults.md")
    line = re.compile(r"^  ([A-Z]\d\d)  (pass  |not run: ).+  \[(.+)\]$", re.MULTILINE)
    shown = [(found[1], found[3]) for found in line.finditer(text)]
    assert shown == [(row.id, row.sentence) for row in load_rows()]
    words = [found[2].split(":")[0].strip() for found in line.finditer(text)]
    counts = f"{words.count('pass')} pass, 0 fail, {words.count('not run')} not run"
    assert f"\n{counts}\n```\n" in text


# --- files -------------------------------------------------------------------------------


@in_every_document
def test_every_link_has_a_target(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if not re.match(r"https?:|#", target):
            path = document.parent / target.partition("#")[0]
            assert path.exists(), f"{document.name}: {target}"


def test_the_newcomers_commands_exist() -> None:
    run, (test,) = (blocks(section(name))[0] for name in ("Install and run", "Test"))
    first, chat, serve, *_ = run
    # The link of install.sh, which may not be on the PATH yet.
    assert chat.startswith(f"~/.local/bin/{PROGRAM} chat ")
    assert serve.startswith(f"~/.local/bin/{PROGRAM} serve -m ")
    for script in (first, test):
        assert (ROOT / script).stat().st_mode & 0o100


def blocks(text: str) -> list[list[str]]:
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found]


def test_the_changelog_is_about_this_version() -> None:
    headings = re.findall(r"^## (\S+)", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == __version__


def test_each_promise_of_the_threat_model_names_tests_that_exist() -> None:
    promises = rows(text_of(ROOT / "docs/threat-model.md").partition("## What you are promised")[2])
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^ *def (test_\w+)", sources, re.MULTILINE))
    assert len(promises) > 15
    for promise, named in promises:
        tests = re.findall(r"`(\w+)`", named)
        assert tests, promise
        assert set(tests) <= defined, f"{promise} {set(tests) - defined}"
