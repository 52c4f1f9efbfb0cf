"""The program reads the date in one place, and no test has today's."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support import calendar
from support.calendar import TODAY, day
from support.program import environment, run_program
from support.repository import RepositorySimulator
from support.servers import NOW
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from tsuku_llm import clock
from tsuku_llm.metadata_status import Freshness
from tsuku_publish.cli import options

ROOT = Path(__file__).parents[2]
READERS = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("time.time", "time.time_ns", "time.gmtime", "time.localtime", "time.ctime"),
}
OF_FILES = "compares with the times of files, which the system writes"
OF_DRIVERS = "compares with the times of the driver, which reads the system's clock"
OF_TLS = "makes what other programs verify by the system's clock"
MAY_READ = {
    "installer/tsuku_llm/clock.py": "is the clock",
    "installer/tsuku_llm/instances/folder.py": OF_FILES,
    "installer/tsuku_llm/launch/nvml_worker.py": OF_DRIVERS,
    "installer/tsuku_llm/launch/observation.py": OF_DRIVERS,
    "installer/tsuku_llm/store/store.py": OF_FILES,
    "tests/support/calendar.py": "moves the clock",
    "tests/support/in_children/sitecustomize.py": "moves the clock",
    "tests/support/certificates.py": OF_TLS,
    "tests/support/registry.py": OF_TLS,
    "tests/project/test_another_day.py": "compares with the system's day",
}


def readers(path: Path) -> Iterator[str]:
    """Yield what reads the system's calendar in a file, by name and line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            named = ".".join(ast.unparse(node).split(".")[-2:])
            if named in READERS:
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {named}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {f"time.{each.name}" for each in node.names}
            if names & READERS:
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: from time import"


def test_only_the_clock_reads_the_date() -> None:
    folders = ("installer/tsuku_llm", "installer/tsuku_publish", "tests")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [each for path in paths for each in readers(path)]
    assert {each.split(":")[0] for each in found} >= {*MAY_READ}, "a name of the table is left over"
    wrong = [each for each in found if each.split(":")[0] not in MAY_READ]
    assert not wrong, "use tsuku_llm.clock, or say in the table why not"


# --- the clock itself -----------------------------------------------------------------------


def test_no_variable_of_ours_moves_it(tmp_path: Path) -> None:
    """Without the tests' own module the program has the system's day, whatever is set."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"TSUKU_LLM_NOW": "2030-01-01", "SOURCE_DATE_EPOCH": "1", "TSUKU_HOME": str(tmp_path)}
    code = "import time\nfrom tsuku_llm import clock\nprint(clock.now().timestamp() - time.time())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert abs(float(done.stdout)) < 5


@pytest.mark.parametrize(
    ("system", "said"),
    [
        (day("2026-11-26T12:00:00Z").timestamp(), "2026-11-26T12:00:00Z"),
        (0.0, "1970-01-01T00:00:00Z"),
        (-1.0, "1970-01-01T00:00:00Z"),
        (-1e18, "1970-01-01T00:00:00Z"),
        (2.0**31, "2038-01-19T03:14:08Z"),
        (2.0**32, "2106-02-07T06:28:16Z"),
        (221845392000.0, "9000-01-01T00:00:00Z"),
        (253402300799.0, "9000-01-01T00:00:00Z"),
        (253402300800.0, "9000-01-01T00:00:00Z"),
        (2.0**63, "9000-01-01T00:00:00Z"),
    ],
)
def test_a_clock_outside_of_the_calendar_is_at_its_end(
    system: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "time", Still(system))
    assert clock.stamp() == said
    assert options.today() == said[:10]
    age = Freshness("x", TODAY, TODAY)
    assert age.age(clock.now())
    for sum_of in (clock.now() + timedelta(days=300_000), clock.now() - timedelta(days=700_000)):
        assert sum_of.tzinfo


class Still:
    """A system whose clock stands."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return self._seconds


# --- the tests' day -------------------------------------------------------------------------


def about(day: datetime) -> tuple[datetime, datetime]:
    return day - timedelta(minutes=5), day + timedelta(hours=12)


def here() -> datetime:
    return clock.now()


def in_a_child(**extra: str) -> datetime:
    code = "from tsuku_llm import clock\nprint(clock.now().isoformat())"
    env = {**os.environ, **extra}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return datetime.fromisoformat(done.stdout.strip())


def of_tuf() -> datetime:
    """What python-tuf compares expiry with."""
    return TrustedMetadataSet(
        RepositorySimulator().pinned_root, EnvelopeType.METADATA
    ).reference_time


@pytest.mark.parametrize("asked", [here, in_a_child, of_tuf])
def test_every_process_has_the_day_of_the_metadata(asked: Callable[[], datetime]) -> None:
    earliest, latest = about(TODAY)
    assert earliest < asked() < latest


@pytest.mark.parametrize("asked", [here, in_a_child, of_tuf])
@pytest.mark.parametrize("other", ["2020-02-29", "2039-01-01T12:00:00Z"])
def test_a_test_can_have_another_day(
    asked: Callable[[], datetime], other: str, at: Callable[[datetime], None]
) -> None:
    at(day(other))
    earliest, latest = about(day(other))
    assert earliest < asked() < latest


@pytest.mark.parametrize("later", [0, 1, 400, 4500, 2_000_000])
def test_a_program_has_the_day_of_its_environment(later: int, tmp_path: Path) -> None:
    env = {**environment(tmp_path), **calendar.on(TODAY + timedelta(days=later))}
    done = run_program("repository", "list", env=env)
    assert f"({later} day{'' if later == 1 else 's'} ago)" in done.stdout, done


def test_one_day_is_everywhere_that_of_the_embedded_metadata() -> None:
    assert NOW == TODAY
