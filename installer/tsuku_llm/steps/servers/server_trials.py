"""The trial of a build by a server in the background: started again, asked, and judged.

The supervisor exchanges the build (``steps.serve.serve``). Here the server is asked how it
does, with the address and the key that the running process itself has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.config.keys import key_named
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import BadModel, LaunchError, NotRunning, StoreError
from tsuku_llm.ground.foreign import read_kernel
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.ground.safe_text import Secret, shell_word
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record, ServerState
from tsuku_llm.launch.ask.canary import ask_canary
from tsuku_llm.launch.ask.health import api_key
from tsuku_llm.launch.ask.speed import measure
from tsuku_llm.launch.plan.addresses import ServerAddress, address_of
from tsuku_llm.launch.plan.report import Performance
from tsuku_llm.launch.plan.wishes import wishes_in
from tsuku_llm.steps.choosing.acceptance import (
    FAILED,
    Shortcoming,
    needed_speed,
    shortcoming,
)
from tsuku_llm.steps.choosing.which import read_in_files
from tsuku_llm.steps.drivers.speed_notes import last_speed
from tsuku_llm.steps.servers.background import RELOAD, server
from tsuku_llm.store.records.installed import Installed


class ServerOutcome(str, Enum):
    """What became of one server.

    ``BACK``: it runs the former build again. ``DOWN``: it does not run. ``STOPPED``: a user
    stopped it meanwhile. ``LEFT``: it was not touched, and keeps its build.
    """

    UPDATED = "updated"
    BACK = "back"
    DOWN = "down"
    STOPPED = "stopped"
    LEFT = "left"


_PAUSE = 0.1
"""Seconds between two looks at a server that is started again."""

_DEAF = 30.0
"""Seconds in which a supervisor must begin: it looks once a second, and its server may need 10."""

_MEASUREMENTS = 3
"""The best of so many measurements counts: another program, or a user, slows one of them down."""

_STOPPED_CODES = (0, 129, 130, 143)
"""Exit codes of a supervisor that was told to end."""


@dataclass(frozen=True, slots=True)
class ServerResult:
    """One server, what became of it, and why."""

    name: str
    outcome: ServerOutcome
    detail: str = ""


class Judgement(NamedTuple):
    """The result of a trial: why the build is refused, if it is, and the speed that it needed."""

    result: ServerResult
    failure: Shortcoming | None = None
    needed: float | None = None


def try_on(
    state: Path, record: Record, former: Installed, new: Installed, *, canary: bool
) -> Judgement:
    """Have a server run the active version, ``new``; judge it by how that server did before.

    One that runs ``new`` already, after a crash of an update, is judged as it is. ``canary`` is
    the setting, for a server that has none of its own.
    """
    instances = Instances(state)
    serving = _serving(instances, record)
    before: Performance | None = None
    if serving and serving.report and serving.report.id != new.id:
        before, _, _ = _performance(state, serving, new, canary=canary)
        serving = restarted(instances, serving)
    if serving is None or serving.report is None:
        return without_answer(instances, record)
    name, bench = record.name, None
    after: Performance | None = None
    if serving.report.id == new.id:
        after, bench, lost = _performance(state, serving, new, before, canary=canary)
        # It ends in the middle of its first work: the supervisor returns to the former build.
        other = _serving(instances, serving, serving.server) if lost else None
        if other and other.report:
            serving, after = other, None
    report = serving.report
    assert report
    returned = [each.reason for each in report.fallen_back_from if each.variant == new.id]
    if report.id != new.id and not returned:
        detail = f"it runs {report.id}, which was made active meanwhile"
        return Judgement(ServerResult(name, ServerOutcome.LEFT, detail))
    backends = (former.receipt.backend, new.receipt.backend)
    failure = shortcoming(backends, before, after, "".join(returned[-1:]), bench)
    # A server that runs the new build goes back with the others.
    outcome = ServerOutcome.UPDATED if report.id == new.id else ServerOutcome.BACK
    if failure is None:
        return Judgement(ServerResult(name, outcome))
    told = failure._replace(reason=f"{name}: {failure.reason}")
    needed = needed_speed(bench, before.speed if before else None)
    return Judgement(ServerResult(name, outcome, failure.reason), told, needed)


def bring_back(state: Path, record: Record, former: Installed) -> ServerResult:
    """Have a server run the active version again, which is ``former``."""
    instances = Instances(state)
    serving = _serving(instances, record)
    # Its supervisor may have returned by itself.
    if serving and serving.report and serving.report.id != former.id:
        serving = restarted(instances, serving)
    if serving is None or serving.report is None:
        return without_answer(instances, record).result
    if serving.report.id == former.id:
        return ServerResult(record.name, ServerOutcome.BACK)
    return ServerResult(record.name, ServerOutcome.LEFT, f"it runs {serving.report.id}")


def speed_now(state: Path, name: str, version: Installed, *, canary: bool) -> float | None:
    """Return how fast a server is that runs ``version`` now; None if nothing can be measured."""
    with suppress(StoreError):
        record = Instances(state).find(name)
        if record and record.report and record.report.ready:
            return _performance(state, record, version, canary=canary)[0].speed
    return None


_RECORD = 1 << 20
"""Bytes that a record and what a server says while it starts have room in."""


def restart(state: Path, name: str) -> Record:
    """Start a server in the background again, with the active version; return it once it serves.

    Raises ``NotRunning`` if it does not run, and ``LaunchError`` if it cannot be asked, or if it
    does not come back. Where it could not start again (``BadModel``, ``NoSpace``), it is not ended.
    """
    record = server(state, name)
    words = " ".join(map(shell_word, record.arguments or ()))
    again = f"{TSUKU} serve --detach --name {name} -- {words}".removesuffix(" -- ")
    if not record.state.is_up:
        raise NotRunning(f"the server {name} does not run any more", hint=f"start it: {again}")
    by_hand = f"stop it: {TSUKU} stop {name}; then: {again}"
    if record.state is ServerState.STARTING:
        raise LaunchError(f"the server {name} is not ready yet", hint=f"see: {record.log_command}")
    if record.state is ServerState.UNWATCHED or RELOAD is None:
        why = "its supervisor was killed" if RELOAD else "Windows has no signal for it"
        raise LaunchError(f"the server {name} cannot be asked: {why}", hint=by_hand)
    from tsuku_llm.launch.failed.failure import other_than_needed

    # The supervisor ends the server first: a start that cannot succeed must not cost a healthy one.
    wishes = wishes_in(record.arguments or (), {})
    if wishes.model and os.path.isabs(wishes.model):
        try:
            what, fix = other_than_needed(wishes.model, "-m") or ("", "")
        except FileNotFoundError:
            what, fix = "not there any more", "put the file back"
        except OSError as error:
            what, fix = f"not readable: {error.strerror or error}", "check who may read the file"
        if what:
            raise BadModel(
                f"the server {name} is not started again: its model is {what}",
                facts=(wishes.model,),
                hint=f"{fix}; until then the server goes on with what it has loaded",
            )
    # Without a new record nobody could tell which process serves.
    require_space(state, _RECORD)
    instances = Instances(state)
    if found := restarted(instances, record):
        return found
    result = without_answer(instances, record).result
    raise LaunchError(
        f"the server {name} was not started again: {result.detail}",
        hint=f"see: {record.log_command}; or {by_hand}",
    )


def restarted(instances: Instances, record: Record) -> Record | None:
    """Ask a supervisor to start its server again; return its record once that serves, else None."""
    sent = False
    with suppress(OSError):
        sent = RELOAD is not None and record.supervisor.send(RELOAD)
    return _serving(instances, record, record.server) if sent else None


def _serving(instances: Instances, record: Record, but: Process | None = None) -> Record | None:
    """Wait until a server serves, in another process than ``but``; return its record.

    None if it ends, or if nothing happens. A start that makes no progress is given up, so this
    ends.
    """
    supervisor, deadline = record.supervisor, time.monotonic() + _DEAF
    while time.monotonic() < deadline:
        with suppress(StoreError):
            found = instances.find(record.name)
            # ``stop`` removes the record; the name may be another server's by now.
            if found is None or found.supervisor != supervisor:
                return None
            record = found
        state = record.state
        # None: it has ended, and its supervisor has not yet said what follows.
        judged = record.report is not None and record.report.is_judged
        if state is ServerState.RUNNING and judged and record.server not in (None, but):
            return record
        if state not in (ServerState.RUNNING, ServerState.STARTING):
            return None
        if state is ServerState.STARTING or not judged:
            deadline = time.monotonic() + _DEAF
        time.sleep(_PAUSE)
    return None


def without_answer(instances: Instances, record: Record) -> Judgement:
    """Return what became of a server that does not serve, or whose supervisor did nothing."""
    now: Record | None = None
    with suppress(StoreError):
        now = instances.find(record.name)
    name = record.name
    if now is None or now.supervisor != record.supervisor:
        # ``stop`` removes the record; the name may be another server's by now.
        return Judgement(ServerResult(name, ServerOutcome.STOPPED, "it was stopped meanwhile"))
    if now.state.is_up:
        words = "it was not exchanged; to have it run the new build, stop it and start it again"
        return Judgement(ServerResult(name, ServerOutcome.LEFT, words))
    if now.state is ServerState.ENDED and now.exit_code in _STOPPED_CODES:
        # A build on trial that ends by itself is followed by the former one.
        return Judgement(ServerResult(name, ServerOutcome.STOPPED, "it was stopped meanwhile"))
    how = now.reason or ("it ended" if now.state is ServerState.ENDED else "it was killed")
    failure = Shortcoming(FAILED, f"{name}: {how}")
    return Judgement(ServerResult(name, ServerOutcome.DOWN, how), failure)


# --- how a server does ---------------------------------------------------------------------


def _performance(
    state: Path,
    record: Record,
    version: Installed,
    before: Performance | None = None,
    *,
    canary: bool,
) -> tuple[Performance, float | None, bool]:
    """Ask a server for one token, and measure it if there is a benchmark to compare with.

    Also return the speed of that benchmark, of its model on the backend of ``version``, and whether
    the server broke off the request.
    """
    assert record.report
    argv, env = command_of(record, version)
    wishes = wishes_in(argv, env)
    model = Path(wishes.model) if wishes.model else None
    bench = last_speed(state, model, version.receipt.backend)
    found = Performance(record.report.verdict)
    # A user who wants no request from us gets none.
    if not _may_ask(env, canary=canary):
        return found, bench, False
    address = record.listening(address_of(argv, env))
    token = ask_canary(address, wishes)
    found = found._replace(answered=token.answered, problem=token.problem, answer=token.answer)
    if token.answered and bench is not None:
        # One for embeddings completes no text, for example.
        with suppress(LaunchError, OSError, UnicodeError):
            enough = needed_speed(bench, before.speed if before else None)
            found = found._replace(speed=best_speed(address, api_key(wishes), enough))
    return found, bench, token.lost


def best_speed(
    address: ServerAddress,
    key: Secret | None,
    enough: float | None,
    on_wait: Callable[[], None] = lambda: None,
) -> float:
    """Measure a server up to three times, until it is fast enough; return its best speed.

    ``enough`` is None if any speed will do. ``on_wait`` is that of ``measure``. Raises LaunchError.
    """
    best = 0.0
    for _ in range(_MEASUREMENTS):
        best = max(best, measure(address, key, on_wait).generation)
        if enough is None or best >= enough:
            break
    return best


def command_of(
    record: Record, version: Installed | None
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the arguments and the environment of a running server, from its process.

    The environment has what a server of ``version`` reads in upstream's ``config.ini``, too.
    Elsewhere than on Linux the arguments are those of the record, without secrets: a server that
    wants a key then refuses our requests, before and after the trial alike.
    """
    with suppress(OSError):
        if record.server:
            at = f"/proc/{record.server.pid}"
            argv = _words(Path(at, "cmdline"))
            pairs = (word.partition("=") for word in _words(Path(at, "environ")))
            env = {name: value for name, _, value in pairs}
            read = read_in_files(version.receipt, env) if version else ()
            return argv[1:], {**{each.variable: each.value for each in read}, **env}
    return record.arguments or (), {}


def _words(path: Path) -> tuple[str, ...]:
    return tuple(map(os.fsdecode, read_kernel(path).rstrip(b"\0").split(b"\0")))


def _may_ask(env: Mapping[str, str], *, canary: bool) -> bool:
    """Tell whether the settings of a running server allow requests of ours."""
    key = key_named("llm.canary")
    with suppress(ValueError):
        if key.variable in env:
            return key.parse(env[key.variable]) != "false"
    return canary
