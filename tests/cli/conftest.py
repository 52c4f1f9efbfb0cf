import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hints import check_hints
from support.program import Result
from support.schemas import check_output

from tsuku_llm.cli.entry import run

Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home for programs that run in a separate process."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in which a socket's path is short enough wherever the tests' folder is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process; what children write is seen too."""

    def start(*arguments: str) -> Result:
        result = Result(run(arguments), *capfd.readouterr())
        check_output(arguments, result.stdout)
        check_hints(result.stderr)
        return result

    return start


@pytest.fixture
def as_json(program: Run) -> Callable[..., object]:
    """Run with ``--json`` and return the document, which is all of stdout."""

    def start(*arguments: str) -> object:
        result = program(*arguments, "--json")
        document = result.document
        assert result.stdout.count("\n") == 1
        assert document["exit_code"] == result.code
        return document

    return start
