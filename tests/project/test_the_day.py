"""The program reads the date in one place, and no test has today's."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from support import the_day
from support.program import environment, run_program
from support.servers import NOW
from support.the_day import TODAY, day, shifting

from tsuku_llm.ground import clock

DAY = 86_400
CLIENT = "tsuku_llm"
WITH_A_DATE = [
    (CLIENT, "repository", "list"),
    (CLIENT, "explain"),
    (CLIENT, "doctor"),
    (CLIENT, "install", "--dry-run"),
    (CLIENT, "update", "--check"),
    (CLIENT, "repository", "refresh"),
    (CLIENT, "verify"),
]
ROOT = Path(__file__).parents[2]
READERS = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("time.time", "time.time_ns", "time.gmtime", "time.localtime", "time.ctime"),
}
OF_FILES = "compares with the times of files, which the system writes"
OF_DRIVERS = "compares with the times of the driver, which reads the system's clock"
OF_TLS = "makes what other programs verify by the system's clock"
MAY_READ = {
    "installer/tsuku_llm/ground/clock.py": "is the clock",
    "installer/tsuku_llm/instances/folder.py": OF_FILES,
    "installer/tsuku_llm/launch/gpu/nvml_worker.py": OF_DRIVERS,
    "installer/tsuku_llm/launch/gpu/observation.py": OF_DRIVERS,
    "installer/tsuku_llm/store/store.py": OF_FILES,
    "installer/tsuku_llm/ground/system_limits.py": "asks whether there is a date at all",
    "tests/store/test_processes.py": OF_FILES,
    "tests/store/test_sweep.py": OF_FILES,
    "tests/support/the_day.py": "moves the clock",
    "tests/support/certificates.py": OF_TLS,
    "tests/project/test_another_day.py": "compares with the system's day",
    "tests/project/test_the_day.py": "compares with the system's day",
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
    folders = (
        "installer/tsuku_llm",
        "installer/tsuku_operator",
        "installer/tsuku_publish",
        "tests",
    )
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [each for path in paths for each in readers(path)]
    assert {each.split(":")[0] for each in found} >= {*MAY_READ}, "a name of the table is left over"
    wrong = [each for each in found if each.split(":")[0] not in MAY_READ]
    assert not wrong, "use tsuku_llm.ground.clock, or say in the table why not"


# --- the clock itself -----------------------------------------------------------------------


def test_no_variable_of_ours_moves_it(tmp_path: Path) -> None:
    """Without the tests' own module the program has the system's day, whatever is set."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"TSUKU_LLM_NOW": "2030-01-01", "SOURCE_DATE_EPOCH": "1", "TSUKU_HOME": str(tmp_path)}
    code = (
        "import time\nfrom tsuku_llm.ground import clock\n"
        "print(clock.now().timestamp() - time.time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert abs(float(done.stdout)) < 5


@pytest.mark.parametrize("year", [2263, 9999, 20_000])
@pytest.mark.parametrize("words", WITH_A_DATE, ids=" ".join)
def test_a_clock_beyond_all_dates_is_named(
    year: int, words: tuple[str, ...], preloaded: Callable[[int], str], tmp_path: Path
) -> None:
    """The standard library cannot be loaded then; no command calls that a bug of ours."""
    env = environment(tmp_path) | {"LD_PRELOAD": preloaded((year - 1970) * 365 * DAY)}
    done = subprocess.run(
        [sys.executable, "-m", *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done
    assert done.stderr == (
        "error[system-limit]: this machine's clock says a year after 2262, which no program in "
        "Python can read\nhint: set this machine's clock\n"
    )


@pytest.mark.parametrize("year", [1980, 2039, 2107, 2200, 2260])
@pytest.mark.parametrize("words", WITH_A_DATE[:3], ids=" ".join)
def test_every_clock_before_is_read(
    year: int, words: tuple[str, ...], preloaded: Callable[[int], str], tmp_path: Path
) -> None:
    now = (year - 1970) * 365 * DAY + 7 * DAY - int(time.time())
    env = environment(tmp_path) | {"LD_PRELOAD": preloaded(now)}
    done = subprocess.run(
        [sys.executable, "-m", *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 3, 5}, done
    assert "error[bug]" not in done.stderr


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """What compiles the library for a number of seconds, once."""
    folder = tmp_path_factory.mktemp("days")
    return cache(lambda seconds: shifting(seconds, folder))


# --- the tests' day -------------------------------------------------------------------------


def about(day: datetime) -> tuple[datetime, datetime]:
    return day - timedelta(minutes=5), day + timedelta(hours=12)


def here() -> datetime:
    return clock.now()


def in_a_child(**extra: str) -> datetime:
    code = "from tsuku_llm.ground import clock\nprint(clock.now().isoformat())"
    env = {**os.environ, **extra}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return datetime.fromisoformat(done.stdout.strip())


def in_a_worker() -> datetime:
    """The clock of a child that is also a process of pytest, as the workers of xdist are."""
    code = (
        "from tsuku_llm.ground import clock\nfrom support import the_day\n"
        "the_day.fix()\nprint(clock.now().isoformat())"
    )
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    return datetime.fromisoformat(done.stdout.strip())


@pytest.mark.parametrize("asked", [here, in_a_child, in_a_worker])
def test_every_process_has_the_day_of_the_metadata(asked: Callable[[], datetime]) -> None:
    earliest, latest = about(TODAY)
    assert earliest < asked() < latest


@pytest.mark.parametrize("asked", [here, in_a_child, in_a_worker])
@pytest.mark.parametrize("other", ["2020-02-29", "2039-01-01T12:00:00Z"])
def test_a_test_can_have_another_day(
    asked: Callable[[], datetime], other: str, at: Callable[[datetime], None]
) -> None:
    at(day(other))
    earliest, latest = about(day(other))
    assert earliest < asked() < latest


@pytest.mark.parametrize("later", [0, 1, 400, 4500, 2_000_000])
def test_a_program_has_the_day_of_its_environment(later: int, tmp_path: Path) -> None:
    env = {**environment(tmp_path), **the_day.on(TODAY + timedelta(days=later))}
    done = run_program("repository", "list", env=env)
    assert f"({later} day{'' if later == 1 else 's'} ago)" in done.stdout, done


def test_one_day_is_everywhere_that_of_the_embedded_metadata() -> None:
    assert NOW == TODAY
