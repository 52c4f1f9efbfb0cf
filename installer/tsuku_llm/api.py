"""The library: choose, install and serve a build of llama.cpp from a Python program.

    from tsuku_llm import api

    with api.ensure_server("model.gguf") as server:
        print(server.base_url)

Each function does what the command of its name does, and reads the same settings. Sizes are in
bytes, times in seconds. Any number of threads and processes may call any function at once. Nothing
is printed, and the process keeps its environment, folder and signal handlers. Every error is an
``Error``; Ctrl-C stays a ``KeyboardInterrupt``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tsuku_llm.catalog.manifest import Release
from tsuku_llm.choose.selection import Selection, VariantFit
from tsuku_llm.config.keys import key_named
from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import SystemLimitReached
from tsuku_llm.ground.errors import TsukuError as Error
from tsuku_llm.instances.record import Record, ServerState
from tsuku_llm.launch.plan.addresses import ServerUrls
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.machine.hardware import (
    Api,
    ApiState,
    Cpu,
    Evidence,
    Gpu,
    GpuKind,
    Hardware,
    Libc,
    Problem,
)
from tsuku_llm.steps import prefetch
from tsuku_llm.steps.choosing.choice import Choice
from tsuku_llm.steps.install import install as installing
from tsuku_llm.steps.install import maintenance, versions
from tsuku_llm.steps.install import update as updating
from tsuku_llm.steps.install.update import UpdateReport
from tsuku_llm.steps.report import explain as explaining
from tsuku_llm.steps.report.explain import Explanation
from tsuku_llm.steps.servers import background, ensuring
from tsuku_llm.steps.session import Session, User, opened_session, simulated_host
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt

__all__ = [
    "Api",
    "ApiState",
    "Choice",
    "Cpu",
    "Error",
    "Events",
    "Evidence",
    "Explanation",
    "Gpu",
    "GpuKind",
    "Hardware",
    "Installed",
    "Libc",
    "Options",
    "Problem",
    "Receipt",
    "Record",
    "Release",
    "Selection",
    "Server",
    "ServerState",
    "ServerUrls",
    "StartReport",
    "UpdateReport",
    "VariantFit",
    "active",
    "check_update",
    "ensure_server",
    "explain",
    "install",
    "list_versions",
    "logs",
    "probe",
    "rollback",
    "status",
    "stop",
    "stop_all",
    "update",
    "use",
]


class Events:
    """The events that an application may hear of while a function works; derive from it.

    A method may be called in any thread, but never two at once. What it raises ends the call. This
    class hears nothing and answers no.
    """

    def note(self, text: str) -> None:
        """Take note of a sentence for people, such as a warning."""

    def download(self, name: str, done: int, total: int | None) -> None:
        """Take note that ``done`` bytes of a file are there; ``total`` is None if it is unknown."""

    def loading(self, text: str) -> None:
        """Take note of how far a server is that loads its model, about once a second."""

    def ask(self, question: str) -> bool:
        """Answer a question of yes or no, such as about a large download."""
        del question
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a call.

    ``home`` is the folder of installs, as ``TSUKU_HOME``; None for the user's own. ``settings``
    come before the environment and the config file; their names are those of ``tsuku-llm config
    list``, with or without ``llm.``, their values texts. ``offline`` asks no host for anything.
    ``allow_revoked`` permits a release that its publisher has revoked.
    """

    home: Path | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    offline: bool = False
    allow_revoked: bool = False


_DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Server:
    """A server in the background. Leaving its ``with`` block stops it if this call started it.

    ``record`` says everything that is known of it. It was read when this value was made; only its
    ``state`` and ``urls`` are as they are now.
    """

    record: Record
    started: bool
    _options: Options = _DEFAULTS

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.record.name

    @property
    def base_url(self) -> str | None:
        """The base URL of its OpenAI API; None at a Unix socket, and after its end."""
        return self.record.urls.base_url

    def stop(self) -> None:
        """End the server, and kill it after 15 seconds; one that has ended is no error."""
        with _session(self._options, None, looking=True, tolerant=True) as session:
            background.stop_if_there(session.paths.state, self.name)

    def logs(self) -> str:
        """Return what the server has said so far."""
        return logs(self.name, options=self._options)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.started:
            self.stop()


def probe(*, options: Options = _DEFAULTS, events: Events | None = None) -> Hardware:
    """Return what this machine has: devices, drivers, known problems."""
    with _session(options, events, looking=True, probes=True) as session:
        return prefetch.probe_machine(session.machine.host, session.settings.probe_timeout)


def explain(
    release: str | None = None, *, options: Options = _DEFAULTS, events: Events | None = None
) -> Explanation:
    """Return which variant fits this machine best and why the others do not; use no network.

    ``release`` is a tag or a version number, None for the newest that fits.
    """
    with _session(options, events, looking=True, probes=True) as session:
        return explaining.explained(explaining.explain(session, release=release))


def install(
    release: str | None = None,
    *,
    force: bool = False,
    options: Options = _DEFAULTS,
    events: Events | None = None,
) -> Installed:
    """Install the build that fits this machine and make it active; return it if it is already.

    ``force`` installs it again.
    """
    with _session(options, events, probes=True) as session:
        report = installing.install(session, release=release, force=force)
        assert report.installed
        return report.installed


def check_update(*, options: Options = _DEFAULTS, events: Events | None = None) -> UpdateReport:
    """Ask the repository whether there is a newer release, and return what would change."""
    with _session(options, events) as session:
        return updating.check_update(session)


def update(*, options: Options = _DEFAULTS, events: Events | None = None) -> Installed:
    """Install the newest release of the channel if it is newer; return the active build."""
    with _session(options, events) as session:
        report = updating.update(session)
        if isinstance(report, updating.UpToDate):
            return report.report.installed
        assert report.installed
        return report.installed


def list_versions(
    *, options: Options = _DEFAULTS, events: Events | None = None
) -> tuple[Installed, ...]:
    """Return every installed build that can be read."""
    with _session(options, events, looking=True) as session:
        return tuple(each.build for each in versions.inventory(session).versions)


def active(*, options: Options = _DEFAULTS, events: Events | None = None) -> Installed | None:
    """Return the build that a start uses; None if none is installed."""
    with _session(options, events, looking=True) as session:
        return session.reader.active()


def use(name: str, *, options: Options = _DEFAULTS, events: Events | None = None) -> Installed:
    """Make an installed build active; ``name`` is its id, or a release or variant of only one."""
    with _session(options, events) as session:
        return maintenance.use(session, name)


def rollback(*, options: Options = _DEFAULTS, events: Events | None = None) -> Installed:
    """Go back to the build that was active before."""
    with _session(options, events) as session:
        return maintenance.rollback(session)


def ensure_server(
    model: str | Path | None = None,
    *,
    name: str | None = None,
    arguments: Sequence[str] = (),
    require_gpu: bool = False,
    options: Options = _DEFAULTS,
    events: Events | None = None,
) -> Server:
    """Return a server in the background that is ready; install a build and start it if needed.

    ``model`` is a GGUF file, ``arguments`` are those of llama-server. If they name no port, the
    system chooses a free one. A running server is used if it has this ``name``. Without a name, it
    must have the same model, arguments and settings. With ``require_gpu``, a server that does not
    use the GPU is an ``Error``, and so is an address that the server would misread.
    """
    # Absolute: the same file has the same server, whatever the working folder is.
    given = (*(() if model is None else ("-m", os.path.abspath(model))), *arguments)
    settings = dict(options.settings)
    with _session(options, events) as session:
        if not any(word.partition("=")[0] == "--port" for word in given):
            given = ("--port", "0", *given)
        wanted = name or ensuring.name_for((*given, f"gpu={require_gpu}"), settings)
        record, started = ensuring.ensure_server(
            session,
            wanted,
            given,
            settings,
            require_gpu=require_gpu,
            on_loading=(events or Events()).loading,
        )
        return Server(record, started, options)


def status(*, options: Options = _DEFAULTS, events: Events | None = None) -> tuple[Record, ...]:
    """Return every server in the background whose record can be read."""
    with _session(options, events, looking=True, tolerant=True) as session:
        return background.servers(session).servers


def stop(name: str, *, options: Options = _DEFAULTS, events: Events | None = None) -> None:
    """End a server, and kill it after 15 seconds; a name without a server is an ``Error``."""
    with _session(options, events, looking=True, tolerant=True) as session:
        background.stop(session.paths.state, name)


def stop_all(*, options: Options = _DEFAULTS, events: Events | None = None) -> tuple[str, ...]:
    """End every server in the background; return their names."""
    with _session(options, events, looking=True, tolerant=True) as session:
        return tuple(each.name for each in background.stop_all(session.paths.state))


def logs(name: str, *, options: Options = _DEFAULTS, events: Events | None = None) -> str:
    """Return what a server in the background has said so far."""
    with _session(options, events, looking=True, tolerant=True) as session:
        # "replace": the server may be in the middle of a character now.
        return b"".join(background.log_of(session.paths.state, name)).decode("utf-8", "replace")


# --- the session of one call ---------------------------------------------------------------


@contextmanager
def _session(
    options: Options,
    events: Events | None,
    *,
    looking: bool = False,
    probes: bool = False,
    tolerant: bool = False,
) -> Iterator[Session]:
    """Open the session of one call. Raises only errors of ours, and what ``events`` raises."""
    events = events or Events()
    heard = _OneAtATime(events)
    # A copy: the application may change its own while this call works.
    environ = dict(os.environ)
    if options.home is not None:
        environ["TSUKU_HOME"] = os.fspath(options.home)
    settings = {key_named(name).key: value for name, value in options.settings.items()}
    can_ask = type(events).ask is not Events.ask
    user = User(heard.note, heard, heard.ask, can_ask=can_ask)
    try:
        with opened_session(
            user,
            environ,
            settings,
            looking=looking,
            probes=probes,
            tolerant=tolerant,
            simulated=simulated_host(environ),
        ) as session:
            yield session._replace(offline=options.offline, allow_revoked=options.allow_revoked)
    except Error:
        raise
    except Exception as error:
        # Any module may need a thread, a process or a file.
        if limit := system_limits.reached(error):
            hint = system_limits.fix_of(limit) or ""
            raise SystemLimitReached(limit, hint=hint) from error
        raise


class _OneAtATime:
    """The events of one call, told one after the other, whichever thread has them.

    It is also the receiver of the progress of downloads: each file is loaded by one thread.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        # Held while the application is told. It may be told while it answers a question, so the
        # same thread may take it again.
        self._lock = threading.RLock()
        self._file = threading.local()

    def note(self, text: str) -> None:
        with self._lock:
            self._events.note(text)

    def ask(self, question: str) -> bool:
        with self._lock:
            return self._events.ask(question)

    def begin(self, name: str, total: int | None, there: int = 0) -> None:
        self._file.name, self._file.total, self._file.done = name, total, there
        self.advance(0)

    def advance(self, size: int) -> None:
        self._file.done += size
        with self._lock:
            self._events.download(self._file.name, self._file.done, self._file.total)

    def end(self) -> None:
        """Do nothing: the last call of ``download`` has said it."""

    def stage(self, name: str, what: str) -> None:
        """Do nothing: only the bytes are told."""

    def finish(self) -> None:
        """Do nothing."""
