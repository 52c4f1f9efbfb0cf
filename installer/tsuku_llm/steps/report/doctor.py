"""The examination of the whole chain, from the PCI bus to the server's list of devices."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tsuku_llm._version import __version__
from tsuku_llm.choose.chain.judging import diagnose
from tsuku_llm.choose.chain.links import Chain, Listed, Subject, subject_of
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.errors import (
    NotInstalled,
    TrustError,
    TsukuError,
    UnknownRequest,
    UnsafeLocation,
)
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.run.gate import gate
from tsuku_llm.machine.fixes import for_any_gpu
from tsuku_llm.machine.own_copy import Updater
from tsuku_llm.probe.visible import only_given
from tsuku_llm.steps.choosing import revocation
from tsuku_llm.steps.choosing.choice import Choice, choose, choose_like, staying
from tsuku_llm.steps.choosing.names import without_unknown
from tsuku_llm.steps.choosing.revocation import ReleaseStatus
from tsuku_llm.steps.choosing.which import build_of, meets, requested_version
from tsuku_llm.steps.drivers.caches import CacheState, look_at_caches, would_give
from tsuku_llm.steps.program.copy_facts import own_updater
from tsuku_llm.steps.session import Session
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.updates import RolledBack, read_marks


@documented(
    *("*choice", "*chain", "rolled_back", "installed", "caches", "program"),
    *("deviation", "not_computed"),
)
@dataclass(frozen=True, slots=True)
class Examination:
    """The choice for this machine, and the state of the chain for one backend.

    ``installed`` holds what is known of each installed release, by its version's id. ``updater``
    tells how this program was installed. ``caches`` are those of the backend's drivers.
    ``rolled_back`` are the releases that failed here. ``deviation`` and ``not_computed`` are those
    of the build in use, from its receipt.
    """

    choice: Choice
    chain: Chain
    installed: Mapping[str, ReleaseStatus]
    updater: Updater
    caches: tuple[CacheState, ...] = ()
    rolled_back: tuple[RolledBack, ...] = ()
    deviation: float | None = None
    not_computed: str = ""

    @property
    def program(self) -> Mapping[str, str]:
        """The version of this program, and the way in which this copy was installed."""
        return {"version": __version__, "way": self.updater.way}

    @property
    def given_gpu(self) -> str:
        """How this place gets a GPU, if it has to be given one; else empty."""
        return for_any_gpu(self.choice.hardware.place)


def examine(session: Session) -> Examination:
    """Judge every link for the requested backend, or for the best backend of a GPU.

    The build that ``serve`` would start is judged by its own release, from its own repository and
    channel, unless the session names others. This starts the installed server once or twice, to
    ask it for its devices; it changes nothing. Raises the errors of ``choose``. A broken link is in
    the chain and not an error.
    """
    # A setting with a wrong name must not keep a user from the diagnosis.
    session = without_unknown(session)
    reader = session.reader
    in_use = _in_use(reader, session)
    choice = _choice(session, in_use)
    # All variants, not only those of the requested backend.
    everything = select(choice.release, choice.hardware, Request(prefer=session.settings.prefer))
    built = in_use.receipt.examined if in_use else None

    def judged(requested: str) -> Chain:
        subject = subject_of(requested, everything, choice.hardware, built)
        wanted = subject.requested
        if in_use and built and subject.backend == built[0] != in_use.receipt.backend:
            wanted = in_use.receipt.backend
        installed = _installed(reader, session, wanted)
        own = session.machine.environ
        environ = {**only_given(subject.backend, choice.hardware, own), **own}
        listed = (
            None
            if isinstance(installed, TsukuError)
            else _listed(installed, subject, session.paths, environ)
        )
        found = installed if isinstance(installed, TsukuError) else installed.id
        return diagnose(subject, choice.hardware, everything, found, listed)

    requested = session.settings.backend
    # A CPU build in use does not tell which GPU backend to examine. But serve starts it, so its own
    # faults come before those of a GPU that it does not need.
    own = judged("cpu") if requested == "auto" and built and built[0] == "cpu" else None
    chain = own if own and own.broken else judged(requested)
    known = revocation.signed_status(session, verify=True)
    told = {each.id: known.of(each.receipt) for each in reader.installed()}
    caches = look_at_caches(chain.subject.backend, session.paths, session.machine.environ)
    marks = read_marks(session.paths.data)
    receipt = in_use.receipt if in_use else None
    return Examination(
        choice,
        chain,
        told,
        own_updater(),
        caches,
        marks,
        receipt.deviation if receipt else None,
        receipt.not_computed if receipt else "",
    )


def _in_use(reader: StoreReader, session: Session) -> Installed | None:
    """Return the version that ``serve`` would start, else the active one, if there is one.

    None as well if the pointer is broken: a later link reports that.
    """
    with suppress(TsukuError):
        try:
            return requested_version(session)
        except NotInstalled:
            return reader.active()
    return None


def _choice(session: Session, in_use: Installed | None) -> Choice:
    """Compare the variants of the release of the build in use, or of the one the session names."""
    if in_use is None:
        return choose(session)
    settings, receipt = session.settings, in_use.receipt
    like = session.with_settings(
        repository=settings.repository or receipt.repository,
        channel=settings.channel or receipt.channel,
    )
    if like.settings.repository != receipt.repository:
        return choose(session)
    try:
        # Another channel, or a backend that is not installed: what an install would take.
        if like.settings.channel != receipt.channel or not meets(receipt, settings.backend):
            return choose(staying(like))
        return choose_like(like, in_use)
    except (UnknownRequest, TrustError) as error:
        if settings.repository or settings.channel:
            raise
        # Its repository was removed or cannot be verified: the chain is still worth judging.
        choice = choose(session)
        session.user.note(f"{in_use.id} is not compared with its release: {error.message}")
        return choice


def _installed(reader: StoreReader, session: Session, backend: str) -> Installed | TsukuError:
    """Return the intact version that ``serve`` would start for a backend, or the error."""
    try:
        check_path(session.paths.data)  # also if nothing is installed yet
        installed = requested_version(session.with_settings(backend=backend))
        reader.check(installed)
    except UnsafeLocation as error:
        # Print this even if an earlier link is broken: until it is fixed, every command that writes
        # fails.
        session.user.note(f"warning: {error.message}; {error.hint}")
        return error
    except TsukuError as error:
        return error
    return installed


def _listed(
    installed: Installed, subject: Subject, paths: Paths, environ: Mapping[str, str]
) -> Listed | TsukuError:
    """Ask the installed server for its devices; return them, or the error."""
    expected = subject.gpu.name if subject.gpu else None
    environ = would_give(subject.backend, paths, environ)
    try:
        report = gate(build_of(installed), environ, expected=expected)
    except TsukuError as error:
        return error
    devices = tuple(f"{device.name}: {device.description}" for device in report.devices)
    return Listed(devices, report.device)
