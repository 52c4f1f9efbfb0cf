"""Everything that others made is read by ``ground.foreign``; nothing else reads unbounded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

INSTALLER = Path(__file__).parents[2] / "installer"

ALLOWED = {
    "tsuku_llm.ground.files": "files of our own store: no links, an owner that is checked, a limit",
    "tsuku_llm.ground.folders": "folders, without following a link",
    "tsuku_llm.store": "the same; a version's files are hashed in pieces",
    "tsuku_llm.archive": "in pieces, within the budget of the archive; nothing that may block",
    "tsuku_llm.fetch.artifacts.partial": "our own partial downloads, opened for writing, in pieces",
    "tsuku_llm.fetch.artifacts.stream": "the same, for the thread that unpacks",
    "tsuku_llm.fetch.artifacts.transfer": "each piece is counted against the signed size",
    "tsuku_llm.fetch.places.small_files": "ends after the limit, or the length that was asked for",
    "tsuku_llm.fetch.http.http_get": "the same, for a token",
    "tsuku_llm.probe.worker": "a child that the parent ends, of the standard library alone; capped",
    "tsuku_operator.bundle.bundle_start": "part of the bundle that it reads",
    "tsuku_llm.machine.local_host._opened": "a device node that is opened and closed",
    "tsuku_llm.launch.plan.fingerprint.open_error": "a device node that is opened and closed",
    "tsuku_llm.instances.log.open_log": "opened for writing",
    "tsuku_llm.cli": "the user's answer, and the null device",
    "tsuku_llm.steps.program.copy_facts": "the records of this program's own installation",
    "tsuku_operator.bundle.own_wheel._recorded_files": "the same",
    "tsuku_operator.mirror.registry_mirror._reasons": "one chunk of a bounded size",
    "tsuku_operator.bundle.bundle._own_lock": "a file of this package",
    "tsuku_llm.steps.program.renewed.StagedCopy.commit": "scripts that pip has just made",
    "tsuku_llm.steps.choosing.which.lacks_https": "a file of a verified build, mapped",
    "tsuku_publish.building": "compilers and tools that the publisher chose; files of this package",
    "tsuku_publish.packing": "in pieces, up to the size that was measured",
    "tsuku_publish.upstream.hosting": "ends with an error after the limit",
    "tsuku_publish.holders.passphrases.write_closed": "opened for writing",
    "tsuku_publish.secrets": "the publisher's own repository and its history",
    "tsuku_publish.cli": "the user's answer",
    "tsuku_publish.feed.sandbox": "bubblewrap, and the log and answers of a build in its box",
}
"""The other places that open, read or decode, and why that is bounded. Keep it short."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def opens_to_read(call: ast.Call, place: int) -> bool:
    """Tell whether an ``open`` has a mode that reads; ``place`` is that of the mode."""
    named = next((each.value for each in call.keywords if each.arg == "mode"), None)
    given = named or (call.args[place] if len(call.args) > place else ast.Constant("r"))
    # The argument of another ``open`` is no mode.
    mode = given.value if isinstance(given, ast.Constant) else None
    return isinstance(mode, str) and set(mode) <= set("rwaxbt+") and "r" in mode


def takes_output(call: ast.Call) -> bool:
    """Tell whether a child's output is collected in memory."""
    return any(
        each.arg == "capture_output"
        or (each.arg == "stdout" and dotted(each.value).endswith("PIPE"))
        for each in call.keywords
    )


def opens_a_path(call: ast.Call) -> bool:
    """Tell whether an archive is opened by its path: a file object has one of these names."""
    first = call.args[0] if call.args else ast.Name("fileobj")
    is_open = isinstance(first, ast.Name) and first.id in {"file", "fileobj", "out", "data"}
    return not is_open and not (isinstance(first, ast.Call) and dotted(first.func) == "io.BytesIO")


def is_read(call: ast.Call) -> bool:
    """Tell whether a call opens, reads or decodes something without a bound of its own."""
    name = dotted(call.func)
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    of_host = name.endswith(("host.read_text", "_host.read_text"))
    return (
        (name in {"open", "os.fdopen", "io.open"} and opens_to_read(call, 1))
        or name in {"os.open", "json.load", "json.loads", "mmap.mmap", "subprocess.check_output"}
        or (name == "subprocess.run" and takes_output(call))
        or (name in {"zipfile.ZipFile", "tarfile.open"} and opens_a_path(call))
        or (
            attribute == "open"
            and name not in {"os.open", "io.open", "tarfile.open"}
            and opens_to_read(call, 0)
        )
        or attribute in {"read_bytes", "iter_raw", "iter_bytes", "communicate"}
        or (attribute == "read_text" and not of_host)
        or (attribute in {"read", "readlines", "readline"} and not call.args)
    )


def reads_in(source: str, module: str) -> Iterator[tuple[str, int]]:
    """Yield the function and the line of each read in a module."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            name = f"{inside}.{child.name}" if is_named else inside  # type: ignore[attr-defined]
            if isinstance(child, ast.Call) and is_read(child):
                yield name, child.lineno
            yield from walk(child, name)

    yield from walk(ast.parse(source), module)


def modules() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the source of each module but the reader itself."""
    for package in ("tsuku_llm", "tsuku_operator", "tsuku_publish"):
        for path in sorted((INSTALLER / package).rglob("*.py")):
            if path.name != "foreign.py":
                name = path.relative_to(INSTALLER).with_suffix("").as_posix().replace("/", ".")
                yield name, path.read_text("utf-8")


def reason(name: str) -> str | None:
    """Return the key of ALLOWED that names a function, its module or a package above it."""
    parts = name.split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((each for each in above if each in ALLOWED), None)


READS = [read for name, source in modules() for read in reads_in(source, name)]


def test_N06_nothing_else_reads_without_a_bound() -> None:
    others = [f"{name}:{line}" for name, line in READS if reason(name) is None]
    assert not others, "read it with tsuku_llm.ground.foreign, or say why it is bounded"


def test_every_reason_is_still_needed() -> None:
    assert set(ALLOWED) == {reason(name) for name, _ in READS} - {None}


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open('rb')",
        "path.open()",
        "path.read_text('utf-8')",
        "path.read_bytes()",
        "os.open(path, flags)",
        "json.loads(data)",
        "json.load(file)",
        "file.read()",
        "response.iter_bytes()",
        "subprocess.run(argv, capture_output=True)",
        "subprocess.run(argv, stdout=subprocess.PIPE)",
        "child.communicate()",
        "mmap.mmap(fd, 0)",
        "zipfile.ZipFile(path)",
        "tarfile.open(path)",
    ],
)
def test_an_unbounded_read_is_seen(source: str) -> None:
    assert list(reads_in(source, "x"))


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'wb')",
        "path.open('xb+')",
        "file.read(100)",
        "webbrowser.open(url)",
        "self.plan.open(start, end)",
        "self._host.read_text(path)",
        "subprocess.run(argv, check=True)",
        "read_foreign(path)",
        "zipfile.ZipFile(io.BytesIO(data))",
        "tarfile.open(fileobj=file)",
    ],
)
def test_a_bounded_read_or_a_write_is_none(source: str) -> None:
    assert not list(reads_in(source, "x"))
