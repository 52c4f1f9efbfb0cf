"""The benchmark: it measures which variant is fastest with the user's model."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tsuku_llm import launch
from tsuku_llm.config.editing import set_value
from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import BadModel, LaunchError, TsukuError
from tsuku_llm.launch import Speed
from tsuku_llm.operations.asking import asked_catalog
from tsuku_llm.operations.choice import Choice
from tsuku_llm.operations.fallback import choice_beside, installed_variant
from tsuku_llm.operations.install import install_beside, require_not_revoked
from tsuku_llm.operations.memory import Memory
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.start import Serving, Start
from tsuku_llm.operations.versions import readable
from tsuku_llm.selection import Candidate
from tsuku_llm.store import Installed

WORTHWHILE = 1.25
"""A GPU variant should be this many times as fast as the CPU; below that it is not worth its
trouble."""

_MAGIC = b"GGUF"
_TAIL = 2000
"""Bytes at the end of a server's output in which an error is looked for."""
_LAST_LINES = 3
_BEFORE = ("-c", str(launch.SPEED_CONTEXT), "-np", "1")
"""Put before the user's arguments, so that these can override them."""
_AFTER = ("--host", "127.0.0.1", "--port", "0")
"""Put after the user's arguments, as the server must listen here and on a free port."""
_OURS = ("LLAMA_ARG_", "LLAMA_API_KEY")
"""Prefixes of variables that are removed from the environment. The user's settings for a real
server would make the builds incomparable."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A variant that was not measured; ``size`` is its download in bytes."""

    variant: str
    reason: str
    size: int | None = None


@dataclass(slots=True)
class Course:
    """One variant in the rounds: its measurements, or the failure that ended them."""

    installed: Installed
    device: str | None = None
    speeds: list[Speed] = field(default_factory=list)
    failure: TsukuError | None = None

    @property
    def variant(self) -> str:
        """The variant's name."""
        return self.installed.receipt.variant


@dataclass(frozen=True, slots=True)
class Measured:
    """The medians of one variant, in tokens per second, and the single measurements."""

    variant: str
    version: str
    release: str
    backend: str
    device: str | None
    prompt: float
    generation: float
    speeds: tuple[Speed, ...]
    publisher: str
    repository: str
    unattested: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a benchmark, the fastest at generation first."""

    model: Path
    rounds: int
    results: tuple[Measured, ...]
    failed: tuple[Skipped, ...]
    skipped: tuple[Skipped, ...]

    @property
    def fastest(self) -> Measured:
        """The variant that generates the most tokens per second."""
        return self.results[0]

    @property
    def backend(self) -> str:
        """The value of ``llm.backend`` that selects the fastest variant.

        It is the backend, or the variant's name if several measured variants have this backend.
        """
        backends = [each.backend for each in self.results]
        fastest = self.fastest
        return fastest.backend if backends.count(fastest.backend) == 1 else fastest.variant

    @property
    def hints(self) -> tuple[str, ...]:
        """Notes on GPU variants that are hardly faster than the CPU, or slower."""
        cpu = max((each.generation for each in self.results if each.backend == "cpu"), default=0)
        return tuple(
            f"{each.variant} generates only {each.generation / cpu:.2f} times as fast as the CPU: "
            "it may not be worth its memory and its driver"
            for each in self.results
            if cpu and each.backend != "cpu" and each.generation < WORTHWHILE * cpu
        )


def bench(session: Session, model: Path, arguments: Sequence[str], *, rounds: int) -> Report:
    """Measure every installed variant that fits, and others that the user agrees to install.

    The variants take turns, so that a machine that gets warm or busy slows all of them alike.
    Raises BadModel and Revoked before anything is started, the errors of ``asked_catalog``,
    LaunchError if nothing could be measured, and KeyboardInterrupt.
    """
    # Each variant is measured as it is: never fall back to another one.
    session = session.with_settings(backend="auto", fallback="off")
    model = _checked(model)
    catalog = asked_catalog(session)
    choice = choice_beside(session, readable(session.shelf.active), catalog)
    require_not_revoked(session, choice)
    courses, skipped = _courses(session, choice)
    for number in range(rounds):
        # Each round begins with another variant: the first one finds the machine cooler.
        for course in [*courses[number % len(courses) :], *courses[: number % len(courses)]]:
            if course.failure is None:
                session.user.note(f"round {number + 1} of {rounds}: {course.variant}")
                _visit(session, course, ("-m", str(model), *arguments))
    return _report(model, rounds, courses, skipped)


def save_fastest(session: Session, report: Report, *, ask: bool) -> str | None:
    """Write the fastest as ``llm.backend`` into the config file; with ``ask`` if the user agrees.

    Return the value, or None if nothing was written. Raises the errors of ``set_value``.
    """
    question = f"{report.fastest.variant} is the fastest. Use {report.backend} from now on?"
    # With one variant there is nothing to choose.
    if ask and not (len(report.results) > 1 and session.user.ask(question)):
        return None
    set_value(session.paths.config_file, "llm.backend", report.backend)
    if session.machine.environ.get("TSUKU_LLM_BACKEND"):
        session.user.note("TSUKU_LLM_BACKEND is set, and counts before the config file")
    return report.backend


def _checked(model: Path) -> Path:
    path = working_folder() / model
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise BadModel(
            f"the model {path} cannot be read",
            facts=(error.strerror or str(error),),
            hint="check the path given with -m",
        ) from error
    # Without this check, each server in turn would fail to load the file.
    if magic != _MAGIC:
        raise BadModel(
            f"the model {path} is not a GGUF file",
            facts=(f"it begins with {magic!r}",),
            hint="check the path given with -m; an interrupted download looks like this",
        )
    return path


def _courses(session: Session, choice: Choice) -> tuple[list[Course], tuple[Skipped, ...]]:
    courses, skipped = [], []
    for candidate in choice.selection.compatible:
        found = installed_variant(session.shelf, candidate.variant.name, choice.release.release)
        entrant = found or _installed_on_consent(session, choice, candidate)
        if isinstance(entrant, Skipped):
            skipped.append(entrant)
        else:
            courses.append(Course(entrant))
    if not courses:
        raise LaunchError(
            "there is nothing to measure",
            facts=tuple(f"{each.variant}: {each.reason}" for each in skipped),
            hint="run: tsuku-llm install, or add --yes",
        )
    return courses, tuple(skipped)


def _installed_on_consent(
    session: Session, choice: Choice, candidate: Candidate
) -> Installed | Skipped:
    name, size = candidate.variant.name, candidate.variant.download_size
    cost = f" ({size / 1e6:,.0f} MB)" if size else ""
    if not session.user.ask(
        f"{name} fits too and is not installed. Install it{cost} to measure it?"
    ):
        return Skipped(name, "not installed; --yes installs it", size)
    try:
        return install_beside(session, choice, candidate)
    except TsukuError as error:
        return Skipped(name, error.message, size)


def _visit(session: Session, course: Course, words: Sequence[str]) -> None:
    """Start the server, measure it and end it; a failure counts for this variant only."""
    leash = launch.Leash()

    # Runs in the thread that follows the start, while the main thread waits for the server.
    def told(report: launch.StartReport) -> None:
        if not report.ready or report.port is None:
            return
        course.device = report.device
        try:
            course.speeds.append(launch.measure(report.host, report.port))
        except LaunchError as error:
            course.failure = error
        # This sends SIGTERM to the server; then ``make`` returns in the main thread.
        leash.end("measured")

    gpu = course.installed.receipt.backend != "cpu"
    how = Serving(name="bench", require_gpu=gpu, sink=told, leash=leash)
    memory = Memory(session.paths.state, launch.driver_fingerprint(session.machine.environ))
    start = Start(_alike(session), (*_BEFORE, *words, *_AFTER), how, course.installed, memory, ())
    with tempfile.TemporaryFile() as said:
        try:
            with _unheard(said):
                code = start.make()
        except TsukuError as error:
            course.failure = error
        else:
            # The server ended before it was measured.
            if leash.reason is None:
                course.failure = _ended(code, said)
    if leash.signalled:
        signal.raise_signal(leash.signalled)  # only the server got it: end the benchmark, too


def _alike(session: Session) -> Session:
    """Return the session without settings that would reach one variant and not another."""
    environ = {
        name: value for name, value in session.machine.environ.items() if not name.startswith(_OURS)
    }
    return session.with_settings(update_check=False)._replace(
        machine=session.machine._replace(environ=environ),
        user=session.user._replace(note=lambda _: None),
    )


@contextmanager
def _unheard(said: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to a file for the block: the servers' logs would bury the figures."""
    # On the level of descriptors: the server's stderr is passed on to descriptor 2.
    kept = os.dup(2)
    try:
        os.dup2(said.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _ended(code: int, said: IO[bytes]) -> LaunchError:
    with disk_errors("reading what the server said", Path(tempfile.gettempdir())):
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
        lines = said.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    return LaunchError(f"the server ended with exit code {code}", facts=tuple(lines))


def _report(
    model: Path, rounds: int, courses: Sequence[Course], skipped: tuple[Skipped, ...]
) -> Report:
    failed = tuple(
        Skipped(each.variant, "; ".join((each.failure.message, *each.failure.facts)))
        for each in courses
        if each.failure
    )
    results = [_measured(each) for each in courses if each.failure is None]
    if not results:
        raise LaunchError(
            "no variant could be measured",
            facts=tuple(f"{each.variant}: {each.reason}" for each in failed),
            hint="see: tsuku-llm doctor",
        )
    results.sort(key=lambda each: -each.generation)
    return Report(model, rounds, tuple(results), failed, skipped)


def _measured(course: Course) -> Measured:
    receipt = course.installed.receipt
    return Measured(
        course.variant,
        course.installed.id,
        receipt.release,
        receipt.backend,
        course.device,
        statistics.median(speed.prompt for speed in course.speeds),
        statistics.median(speed.generation for speed in course.speeds),
        tuple(course.speeds),
        receipt.publisher,
        receipt.repository,
        receipt.unattested,
    )
