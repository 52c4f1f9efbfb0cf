"""The benchmark: it measures which variant is fastest with the user's model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tsuku_llm.choose.selection import Candidate
from tsuku_llm.config.editing import set_value
from tsuku_llm.config.keys import key_named
from tsuku_llm.ground.errors import BadModel, Declined, LaunchError, TsukuError
from tsuku_llm.ground.foreign import read_beginning
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.ask.health import api_key
from tsuku_llm.launch.ask.speed import Speed, measure, read_along
from tsuku_llm.launch.compute.canary_answer import Answer, divergence, what_is_wrong
from tsuku_llm.launch.plan.addresses import address_of
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.plan.wishes import wishes_in
from tsuku_llm.steps.choosing.choice import Choice, choose_like, refuse_revoked
from tsuku_llm.steps.choosing.which import installed_variant
from tsuku_llm.steps.drivers.speed_notes import keep_speeds
from tsuku_llm.steps.install.downloads import cost, left_to_download
from tsuku_llm.steps.install.install import install_beside
from tsuku_llm.steps.install.trial import tried_since_a_change
from tsuku_llm.steps.install.versions import readable
from tsuku_llm.steps.metadata.refresh import asked_catalog
from tsuku_llm.steps.serve.short_start import short_start
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt

WORTHWHILE = 1.25
"""A GPU variant should be this many times as fast as the CPU; below that it is not worth its
trouble."""

ALIKE = 0.1
"""The most nats by which what two right builds expect of a text diverges on average.

Gemma 3 270M in Q4_K_M had up to 0.03 with other settings of the same server (``ci/tolerances.md``).
"""

_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A variant that was not measured; ``size`` is its download in bytes."""

    variant: str
    reason: str
    size: int | None = None


@dataclass(slots=True)
class VariantRun:
    """One variant in the rounds: its measurements, or the failure that ended them."""

    installed: Installed
    device: str | None = None
    speeds: list[Speed] = field(default_factory=list)
    answer: Answer = ()
    failure: TsukuError | None = None

    @property
    def variant(self) -> str:
        """The variant's name."""
        return self.installed.receipt.variant


@documented("*build", "device", "prompt", "generation", "speeds", "divergence")
@dataclass(frozen=True, slots=True)
class VariantSpeed:
    """The medians of one build, in tokens per second, and the single measurements.

    ``divergence`` is the mean Kullback-Leibler divergence of what it expects of a text from what
    the CPU's variant expects, else the first one, in nats; None if that is not known.
    """

    build: Installed
    device: str | None
    prompt: float
    generation: float
    speeds: tuple[Speed, ...]
    divergence: float | None = None

    @property
    def diverges(self) -> bool:
        """Whether it computes something else with this model than the variant beside it."""
        return self.divergence is not None and self.divergence > ALIKE

    @property
    def receipt(self) -> Receipt:
        """What was measured."""
        return self.build.receipt


@documented("model", "rounds", "results", "failed", "skipped", "hints", "saved")
@dataclass(frozen=True, slots=True)
class Report:
    """The results of a benchmark, the fastest at generation first, and those that diverge last.

    ``saved`` is what was written as ``llm.backend``, None if nothing was.
    """

    model: Path
    rounds: int
    results: tuple[VariantSpeed, ...]
    failed: tuple[Skipped, ...]
    skipped: tuple[Skipped, ...]
    saved: str | None = None

    @property
    def fastest(self) -> VariantSpeed:
        """The variant that generates the most tokens per second."""
        return self.results[0]

    @property
    def backend(self) -> str | None:
        """The value of ``llm.backend`` that selects the fastest variant; None for an unsigned one.

        It is the backend, or the variant's name if several measured variants have this backend.
        """
        fastest = self.fastest.receipt
        if fastest.unsigned is not None:
            return None
        backends = [each.receipt.backend for each in self.results if each.receipt.unsigned is None]
        return fastest.backend if backends.count(fastest.backend) == 1 else fastest.variant

    @property
    def hints(self) -> tuple[str, ...]:
        """Notes on variants that diverge, and on GPUs that are hardly faster than the CPU."""
        apart = (
            f"{each.receipt.variant} computes something else with this model: it diverges by "
            f"{each.divergence:.2f} nats (at most {ALIKE} if right), so it is not recommended"
            for each in self.results
            if each.diverges
        )
        speeds = [(each.receipt, each.generation) for each in self.results]
        cpu = max((speed for receipt, speed in speeds if receipt.backend == "cpu"), default=0)
        slow = (
            f"{receipt.variant} generates only {speed / cpu:.2f} times as fast as the CPU: "
            "it may not be worth its memory and its driver"
            for receipt, speed in speeds
            if cpu and receipt.backend != "cpu" and speed < WORTHWHILE * cpu
        )
        return (*apart, *slow)


class ShownStatus(Protocol):
    """What a long wait is for, shown in place of the text before it."""

    def show(self, text: str) -> None:
        """Show a text."""

    def close(self) -> None:
        """Remove the text, or print no more of it."""


def bench(
    session: Session, model: Path, arguments: Sequence[str], *, rounds: int, status: ShownStatus
) -> Report:
    """Measure every installed variant that fits, and others that the user agrees to install.

    ``status`` shows what a round does, from the thread that follows a start.

    The active version is measured also if no choice here would take it: an unsigned build, and a
    one made of several that was asked for by its name. The variants take turns, so that a
    machine that gets warm or busy slows all of them alike. Raises BadModel and Revoked before
    anything is started, the errors of ``asked_catalog``, LaunchError if nothing could be measured,
    and KeyboardInterrupt.
    """
    # Each variant is measured as it is: never fall back to another one.
    session = session.with_settings(backend="auto", fallback="off")
    model = _checked(model)
    catalog = asked_catalog(session)
    active = readable(session.reader.active)
    choice = choose_like(session, active, catalog)
    refuse_revoked(choice, allow_revoked=session.allow_revoked)
    own = []
    if active:
        # A build made of several is chosen by its name only.
        left_out = choice.selection.candidate(active.receipt.variant) is None
        if active.receipt.unsigned is not None or (active.receipt.parts and left_out):
            own = [active]
    runs, skipped = _runs_to_make(session, choice, own)
    for run in runs:
        # Let it compute, if drivers have changed since: a wrong build may well be the fastest. The
        # receipt on the disk stays as it is.
        try:
            receipt = tried_since_a_change(session, run.installed)
            run.installed = run.installed._replace(receipt=receipt)
        except TsukuError as error:
            run.failure = error
    for number in range(rounds):
        # Each round begins with another variant: the first one finds the machine cooler.
        for run in [*runs[number % len(runs) :], *runs[: number % len(runs)]]:
            if run.failure is None:
                session.user.note(f"round {number + 1} of {rounds}: {run.variant}")
                compared = len(runs) > 1 and not number
                words = ("-m", str(model), *arguments)
                try:
                    _measure_once(session, run, words, status.show, compared=compared)
                finally:
                    # Before the next start: it ties a child to this process if no thread lives.
                    status.close()
    report = _report(model, rounds, runs, skipped)
    # What a later update is compared with. With arguments it is another server's speed.
    if not arguments:
        signed = [each for each in report.results if each.receipt.unsigned is None]
        fastest = {each.receipt.backend: each.generation for each in reversed(signed)}
        keep_speeds(session.paths.state, model, fastest)
    return report


def save_fastest(session: Session, report: Report, *, ask: bool) -> str | None:
    """Write the fastest as ``llm.backend`` into the config file; with ``ask`` if the user agrees.

    Return the value, or None if nothing was written. Raises the errors of ``set_value``.
    """
    if report.backend is None:
        if not ask:
            session.user.note(
                f"nothing was saved: {report.fastest.receipt.variant} is a build of your own, and "
                "llm.backend chooses signed variants"
            )
        return None
    question = f"{report.fastest.receipt.variant} is the fastest. Use {report.backend} from now on?"
    # With one variant there is nothing to choose.
    if ask and not (len(report.results) > 1 and session.user.ask(question)):
        return None
    set_value(session.paths.config_file, key_named("llm.backend"), report.backend)
    if session.machine.environ.get("TSUKU_LLM_BACKEND"):
        session.user.note("TSUKU_LLM_BACKEND is set and overrides the config file")
    return report.backend


def _checked(model: Path) -> Path:
    path = working_folder() / model
    try:
        magic = read_beginning(path, len(_MAGIC))
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


def _runs_to_make(
    session: Session, choice: Choice, own: Sequence[Installed]
) -> tuple[list[VariantRun], tuple[Skipped, ...]]:
    runs, skipped = [VariantRun(each) for each in own], []
    for candidate in choice.selection.compatible:
        found = installed_variant(session.reader, candidate.variant.name, choice.release.release)
        entry = found or _installed_on_consent(session, choice, candidate)
        if isinstance(entry, Skipped):
            skipped.append(entry)
        else:
            runs.append(VariantRun(entry))
    if not runs:
        if session.user.can_ask and any(each.reason == _LEFT_OUT for each in skipped):
            raise Declined("nothing was changed or measured")
        raise LaunchError(
            "there is nothing to measure",
            facts=tuple(f"{each.variant}: {each.reason}" for each in skipped),
            hint=f"run: {TSUKU} install, or add --yes",
        )
    return runs, tuple(skipped)


_LEFT_OUT = "not installed; --yes installs it"


def _installed_on_consent(
    session: Session, choice: Choice, candidate: Candidate
) -> Installed | Skipped:
    name, size = candidate.variant.name, left_to_download(session, choice, candidate)
    question = f"{name} fits too and is not installed. Install it ({cost(size)}) to measure it?"
    if not (session.agreed or session.user.ask(question)):
        return Skipped(name, _LEFT_OUT, size)
    try:
        return install_beside(session._replace(agreed=True), choice, candidate)
    except TsukuError as error:
        return Skipped(name, error.message, size)


def _measure_once(
    session: Session,
    run: VariantRun,
    arguments: Sequence[str],
    show: Callable[[str], None],
    *,
    compared: bool,
) -> None:
    """Start the server, measure it and end it; a failure counts for this variant only.

    ``compared``: it also reads a text, for a comparison with the other variants.
    """

    def on_ready(report: StartReport, on_wait: Callable[[], None]) -> None:
        run.device = report.device
        # The user's arguments may want a key, a prefix or TLS.
        there = (*arguments, "--host", report.host, "--port", str(report.port))
        address, key = address_of(there, {}), api_key(wishes_in(there, {}))
        show(f"{run.variant}: it answers twice, and the second answer is measured")
        run.speeds.append(measure(address, key, on_wait))
        if compared:
            show(f"{run.variant}: it reads a text, to compare the variants")
            run.answer = read_along(address, key, on_wait)

    gpu = run.installed.receipt.backend != "cpu"
    run.failure = short_start(
        session,
        run.installed,
        arguments,
        on_ready,
        name="bench",
        require_gpu=gpu,
        on_loading=lambda: show(f"{run.variant}: it loads the model"),
    )
    if wrong := what_is_wrong(run.answer):
        run.failure = LaunchError(
            f"its answers are wrong: {wrong}", hint=f"take another variant: {TSUKU} explain"
        )


def _report(
    model: Path, rounds: int, runs: Sequence[VariantRun], skipped: tuple[Skipped, ...]
) -> Report:
    failed = tuple(Skipped(each.variant, each.failure.told) for each in runs if each.failure)
    good = [each for each in runs if each.failure is None]
    right = next((each for each in good if each.installed.receipt.backend == "cpu"), None)
    answer = (right or good[0]).answer if good else ()
    results = [
        VariantSpeed(
            each.installed,
            each.device,
            statistics.median(speed.prompt for speed in each.speeds),
            statistics.median(speed.generation for speed in each.speeds),
            tuple(each.speeds),
            divergence(each.answer, answer),
        )
        for each in good
    ]
    if not results:
        raise LaunchError(
            "no variant could be measured",
            facts=tuple(f"{each.variant}: {each.reason}" for each in failed),
            # What helps the first one: the same model was given to all of them.
            hint=next((each.failure.hint for each in runs if each.failure), ""),
        )
    results.sort(key=lambda each: (each.diverges, -each.generation))
    return Report(model, rounds, tuple(results), failed, skipped)
