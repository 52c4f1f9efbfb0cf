"""The update that nobody watches: it restarts the servers, judges them, and goes back by itself.

The order of steps, each of which may be the last one if this process is killed:

1. The journal says which version was active. From here on the next run knows what to finish.
2. The update installs the new build and moves the active pointer, as any update. If a server that
   runs has an argument that the new build does not take, nothing moves: the release waits.
3. The journal names the new version, too: it is on trial now, and a server of it that ends is
   followed by one of the former version.
4. Each server that runs the former build is restarted on the new one, one after the other.
   Without a server, the model that was served last is started for a moment.
5. If one does worse, the release is marked, and the pointer and the servers go back.
6. The journal is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import (
    GateFailed,
    NotOnGpu,
    SelectionError,
    SilentCpu,
    TsukuError,
)
from tsuku_llm.ground.records import documented
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import ServerState
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import Performance, StartReport, Verdict
from tsuku_llm.steps.choosing.acceptance import (
    ARGUMENTS,
    FAILED,
    SLOW,
    Shortcoming,
    needed_speed,
    shortcoming,
)
from tsuku_llm.steps.choosing.choice import version_of
from tsuku_llm.steps.choosing.passing_over import Bounds, Offered, PassedOver, why_passed_over
from tsuku_llm.steps.choosing.which import meets
from tsuku_llm.steps.drivers.speed_notes import last_served, last_speed
from tsuku_llm.steps.install.install import InstallReport, refused_servers
from tsuku_llm.steps.install.update import UpdateReport, UpToDate, apply_update, check_update
from tsuku_llm.steps.serve.short_start import short_start
from tsuku_llm.steps.servers.server_trials import (
    ServerOutcome,
    ServerResult,
    best_speed,
    bring_back,
    speed_now,
    try_on,
)
from tsuku_llm.steps.session import Session
from tsuku_llm.store.layout import UNATTENDED_LOCK
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.updates import (
    RolledBack,
    UpdateJournal,
    drop_journal,
    drop_marks,
    mark,
    read_journal,
    read_marks,
    unmark,
    write_journal,
)


class UpdateOutcome(str, Enum):
    """How an unattended update ended."""

    UPDATED = "updated"
    UNCHANGED = "unchanged"
    ROLLED_BACK = "rolled-back"
    WAITING = "waiting"


@documented(
    *("outcome", "*active", "tried", "checked", "servers", "failure", "marked", "stuck"),
    "rolled_back",
)
@dataclass(frozen=True, slots=True)
class UnattendedReport:
    """The result of an unattended update, and the build that is active now.

    ``outcome`` is ``updated``, ``unchanged``, ``rolled-back``, or ``waiting`` for a server whose
    arguments the new build does not take: nothing was changed. ``tried`` is the release that was
    tried, None if none was, or if it is gone. ``failure`` says why it was refused. ``checked`` says
    how it was judged: ``servers``, ``last-model``, ``gate``, or ``nothing`` if nothing was to be
    done. ``marked``: the release is marked now; it is not if the machine was at fault. ``stuck`` is
    the error that kept the former version from being active again.
    """

    outcome: UpdateOutcome
    active: Installed
    tried: str | None
    servers: tuple[ServerResult, ...] = ()
    failure: Shortcoming | None = None
    checked: str = "nothing"
    marked: bool = False
    stuck: TsukuError | None = None
    rolled_back: tuple[RolledBack, ...] = ()


def forget_rolled_back(data: Path) -> None:
    """Forget which releases failed on this machine, so that they are taken again."""
    drop_marks(data)


def unattended_update(session: Session) -> UnattendedReport:
    """Update, judge the new build by the servers of this user, and go back if it does worse.

    An update that was broken off is finished first. Raises the errors of ``update``, and StoreError
    if the pointer cannot go back. A server that could not be brought back is in the report.
    """
    store = session.store
    store.adopt()
    # Two timers, or a timer and a person: the second one waits, and finds nothing left to do.
    with store.lock(UNATTENDED_LOCK) as locked:
        if locked:
            # Only an update writes it, and no other one runs now.
            store.drop_journal_temporaries()
        report = _finished(session) or _updated(session)
    return replace(report, rolled_back=read_marks(session.paths.data))


def _finished(session: Session) -> UnattendedReport | None:
    """Finish an update that was broken off; None if there is none, or nothing of it is left."""
    data = session.paths.data
    journal = read_journal(data)
    if journal is None:
        return None
    # It may have been killed at the end of its install, when nothing installs again after it.
    session.store.sweep()
    active = session.reader.active()
    if active:
        session.store.drop_downloads(active.receipt.digests)
    former = session.reader.find(journal.former)
    tried = session.reader.find(journal.tried) if journal.tried else active
    # Somebody may have chosen another version since, or removed one of the two.
    if former and tried and tried.id != former.id:
        failed = next((each for each in read_marks(data) if each.id == tried.id), None)
        if failed:
            session.user.note(f"an update from {former.id} was broken off while it went back")
            return _back(session, former, tried, Shortcoming(FAILED, failed.reason))
        if active == tried:
            session.user.note(f"an update from {former.id} was broken off: it is finished now")
            return _judged(session, former, tried)
    drop_journal(data)
    return None


def _updated(session: Session) -> UnattendedReport:
    report = check_update(session, exact=True)
    former = report.installed
    if known := _known_failure(session.paths.data, report):
        session.user.note(
            f"{known.release} was {known.text}; it is not tried again; to try it: {known.ends}"
        )
        return UnattendedReport(UpdateOutcome.UNCHANGED, former, None)
    # Before the pointer can move: from here on a next run knows where it came from.
    write_journal(session.paths.data, UpdateJournal(former.id))
    try:
        made = apply_update(session, report, unattended=True)
    except (SelectionError, GateFailed) as error:
        # The gate of every variant that fits has refused it. Nothing was swapped.
        drop_journal(session.paths.data)
        # Without a candidate it is the active version that does not compute any more.
        gate = isinstance(error, GateFailed) or isinstance(error.__cause__, GateFailed)
        if not (gate and report.candidate):
            raise
        # Mark a release that does not even start, so that it is not downloaded again each night.
        repository, release = report.choice.repository, report.choice.release.release
        failure = Shortcoming(FAILED, error.told)
        version = version_of(release, report.candidate.variant)
        _mark(session, repository, release, version, failure)
        back = UpdateOutcome.ROLLED_BACK
        return UnattendedReport(back, former, release, failure=failure, checked="gate", marked=True)
    except BaseException:
        # Nothing has moved, or the next run finds the journal and the pointer, and goes on.
        if session.reader.is_active(former.id):
            drop_journal(session.paths.data)
        raise
    new = None if isinstance(made, UpToDate) else made.installed
    if new is None or new.id == former.id:
        drop_journal(session.paths.data)
        return UnattendedReport(UpdateOutcome.UNCHANGED, former, None)
    if isinstance(made, InstallReport) and made.waits_for:
        # Its build stays, so that the next run need not download it again.
        drop_journal(session.paths.data)
        why = Shortcoming(ARGUMENTS, made.waits_for)
        return UnattendedReport(UpdateOutcome.WAITING, former, new.receipt.release, failure=why)
    return _judged(session, former, new)


def _known_failure(data: Path, report: UpdateReport) -> PassedOver | None:
    """Return that what an update would install failed here; None if it did not.

    A channel's release was left out before; this is about one that a setting names, and about
    another variant of the installed release.
    """
    candidate, choice = report.candidate, report.choice
    if candidate is None:
        return None
    release, variant = choice.release.release, candidate.variant
    here = None if report.newer else release
    bounds = Bounds(choice.repository, here=here, marks=read_marks(data))
    offered = Offered(release, id=version_of(release, variant))
    return next(iter(why_passed_over(offered, bounds)), None)


def _mark(
    session: Session, repository: str, release: str, version: str, failure: Shortcoming
) -> None:
    at = clock.stamp(session.machine.now)
    mark(session.paths.data, RolledBack(repository, release, version, failure.reason, at))


# --- the judgement -------------------------------------------------------------------------


def _judged(session: Session, former: Installed, new: Installed) -> UnattendedReport:
    """Restart the servers of the former build on the new one; keep that, or go back."""
    write_journal(session.paths.data, UpdateJournal(former.id, new.id))
    results: list[ServerResult] = []
    # After a crash, or of a server that was started since the pointer has moved: the release is
    # right.
    for record, why in refused_servers(session.paths.state, new):
        if record.state.is_up:
            told = f"{record.name}: {why}; change its arguments"
            return _back(session, former, new, Shortcoming(ARGUMENTS, told))
    for record in Instances(session.paths.state).all():
        if not record.state.is_up:
            continue
        report = record.report
        # After a crash some run the new build already; they are judged as well.
        if report is None or report.id not in (former.id, new.id):
            running = report.id if report else "nothing yet"
            detail = f"it runs {running}, and not the build that is replaced"
            results.append(ServerResult(record.name, ServerOutcome.LEFT, detail))
            continue
        if not meets(new.receipt, report.requested):
            detail = f"it was started with the backend {report.requested}"
            results.append(ServerResult(record.name, ServerOutcome.LEFT, detail))
            continue
        session.user.note(f"{record.name}: restarting it with {new.id}")
        judgement = try_on(session.paths.state, record, former, new, canary=session.settings.canary)
        results.append(judgement.result)
        if judgement.failure:
            needed = judgement.needed
            return _back(session, former, new, judgement.failure, results, needed=needed)
    checked = "servers"
    if all(each.outcome is not ServerOutcome.UPDATED for each in results):
        checked, failure = _short_trial(session, former, new)
        if failure:
            return _back(session, former, new, failure, results, checked=checked)
    drop_journal(session.paths.data)
    return UnattendedReport(
        UpdateOutcome.UPDATED, new, new.receipt.release, tuple(results), checked=checked
    )


def _short_trial(
    session: Session, former: Installed, new: Installed
) -> tuple[str, Shortcoming | None]:
    """Start the model that was served last for a moment; return how the build was judged.

    If the former build does no better now, then this machine is at fault and not the new build.
    """
    arguments = last_served(session.paths.state)
    option, name = arguments[:2] if arguments else ("", "")
    model = Path(name) if option == "-m" else None
    if not arguments or (model and not model.is_file()):
        why = f"{model} is gone" if model else "no server runs, and no model is known"
        session.user.note(f"only the gate has judged {new.id}: {why}")
        # It may still have moved from the GPU to the processor.
        backends = (former.receipt.backend, new.receipt.backend)
        on_cpu = Performance(Verdict.ON_CPU if new.receipt.backend == "cpu" else Verdict.UNKNOWN)
        return "gate", shortcoming(backends, None, on_cpu)
    session.user.note(f"no server runs: starting {name} with {new.id} for a moment")
    if model is None:
        # What was downloaded must do: another version of the model would be no trial of the build.
        arguments = (*arguments, "--offline")
    backends = (former.receipt.backend, new.receipt.backend)

    def judged(version: Installed) -> Shortcoming | None:
        bench = last_speed(session.paths.state, model, version.receipt.backend)
        after, failure = _performance(session, version, arguments, needed_speed(bench, None))
        return shortcoming(backends, None, after, failure, bench)

    refused = judged(new)
    if refused and backends[0] == backends[1] and (same := judged(former)):
        session.user.note(f"{former.id} does no better with this model: {same.reason}")
        return "gate", None
    return "last-model", refused


def _performance(
    session: Session, version: Installed, arguments: Sequence[str], enough: float | None
) -> tuple[Performance | None, str]:
    """Start one version with a model; return how it did, or why it did not serve."""
    seen: list[Performance] = []

    def on_ready(report: StartReport, on_wait: Callable[[], None]) -> None:
        # A token, and its speed; measured again if another program had the machine.
        speed = best_speed(ServerAddress(report.host, report.port or 0), None, enough, on_wait)
        seen.append(Performance(report.verdict, answered=True, speed=speed))

    gpu = version.receipt.backend != "cpu"
    error = short_start(session, version, arguments, on_ready, name="update", require_gpu=gpu)
    if isinstance(error, (SilentCpu, NotOnGpu)):
        return Performance(Verdict.ON_CPU, answered=True), ""
    if error:
        return None, error.told
    return seen[-1], ""


# --- the way back --------------------------------------------------------------------------


def _back(
    session: Session,
    former: Installed,
    tried: Installed,
    failure: Shortcoming,
    results: Sequence[ServerResult] = (),
    *,
    checked: str = "servers",
    needed: float | None = None,
) -> UnattendedReport:
    """Mark the release, return to the former version, with all servers, and say what is what.

    ``needed`` is the speed that a server of the new build did not reach.
    """
    data, receipt = session.paths.data, tried.receipt
    # First: with the mark and the journal, the next run goes back, too.
    marked = failure.kind != ARGUMENTS
    if marked:
        _mark(session, receipt.repository, receipt.release, tried.id, failure)
    session.user.note(f"{failure.reason}; going back to {former.id}")
    active = session.reader.active()
    stuck: TsukuError | None = None
    if active is None or active.id == tried.id:
        try:
            session.store.use(former)
            active = former
        except TsukuError as error:
            # The servers keep the build that they run: it serves, and a damaged one does not.
            stuck = error
    elif active.id != former.id:
        session.user.note(f"{active.id} was made active meanwhile, and stays active")
    servers = {each.name: each for each in results}
    for record in Instances(session.paths.state).all():
        running = record.report.id if record.report else None
        # One that loads the former build is on its way back already, after a crash for example.
        returns = record.state is ServerState.STARTING and running == former.id
        if not (returns or (record.state.is_up and running == tried.id)):
            continue
        servers[record.name] = (
            ServerResult(record.name, ServerOutcome.LEFT, stuck.message)
            if stuck
            else bring_back(session.paths.state, record, former)
        )
    if failure.kind == SLOW and needed and _is_slow(session, former, servers.values(), needed):
        # The machine is slow now, and the release did nothing wrong: the next run tries it again.
        session.user.note("the former build is as slow now, so the release is not marked")
        unmark(data, receipt.repository, receipt.release)
        marked = False
    if stuck is None:
        drop_journal(data)
    return UnattendedReport(
        UpdateOutcome.ROLLED_BACK,
        active or former,
        receipt.release,
        tuple(servers.values()),
        failure,
        checked,
        marked=marked,
        stuck=stuck,
    )


def _is_slow(
    session: Session, former: Installed, servers: Iterable[ServerResult], needed: float
) -> bool:
    """Tell whether a server that runs the former build again is slower than ``needed``."""
    back = [each.name for each in servers if each.outcome is ServerOutcome.BACK]
    speeds = [
        speed_now(session.paths.state, name, former, canary=session.settings.canary)
        for name in back
    ]
    return any(speed is not None and speed < needed for speed in speeds)
