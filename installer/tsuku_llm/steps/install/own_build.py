"""The installation of an unsigned build: a folder or an archive of the user's own.

It is checked as a signed archive without a list of files is: by the same readers, and by the gate.
What it is trusted for is the user's yes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from tsuku_llm import __version__
from tsuku_llm.archive.composing import plugins_in
from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.placing import Aside, place
from tsuku_llm.archive.unpack import copy_folder, unpack
from tsuku_llm.catalog.manifest import Artifact, Measured
from tsuku_llm.choose.selection import detected
from tsuku_llm.config.settings import Settings
from tsuku_llm.ground import clock
from tsuku_llm.ground.disk import disk_errors, require_space
from tsuku_llm.ground.errors import (
    GateFailed,
    TsukuError,
    UnknownRequest,
    UnsafeArchive,
    UsageError,
)
from tsuku_llm.ground.files import drop_tree
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_below, check_path
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.ground.tree_entry import LinkEntry, TreeEntry, split_entries
from tsuku_llm.launch.failed.diagnosis import CPU_OVERRIDE
from tsuku_llm.launch.plan.devices import backend_named
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.run.gate import list_devices
from tsuku_llm.machine.backends import JOIN, TABLE, facts_of, meaning
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.temporary import hiding
from tsuku_llm.steps.drivers.caches import build_caches, size_below
from tsuku_llm.steps.install.build_version import hardware_facts
from tsuku_llm.steps.install.downloads import require_yes
from tsuku_llm.steps.install.trial import tried_since_a_change, try_build
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import OWN, ArtifactRecord, Receipt, version_id
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store

_FORMATS = {".tar.gz": "tar.gz", ".tgz": "tar.gz", ".zip": "zip", ".whl": "wheel"}
_NAME = "llama-server.exe" if os.name == "nt" else "llama-server"
_MOST_NAMES = 20_000
"""Names of files among which the server of a folder must be."""
# "version: 6500 (0123abc)", and since autumn 2026 "version: 0.5.0 (build 10434, commit 0123abc)".
_NUMBER = re.compile(r"build (\d{1,9})\b|version: (\d{1,9}) ")
_HINT = "name an archive or the folder that holds the server and its libraries, such as build/bin"


@documented("outcome", "*receipt", "device", "files", "size", "installed")
@dataclass(frozen=True, slots=True)
class OwnBuildReport:
    """The result of ``install --from``: ``planned``, ``installed`` or ``unchanged``.

    ``installed`` is None for a plan, which lacks what only a start shows, such as ``device``.
    """

    outcome: str
    receipt: Receipt
    installed: Installed | None

    @property
    def device(self) -> str | None:
        """The first device that its server lists."""
        return self.receipt.device

    @property
    def files(self) -> int:
        """The number of its files."""
        return len(self.receipt.files)

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.receipt.files)


def install_own(
    session: Session,
    path: Path,
    *,
    dry_run: bool = False,
    force: bool = False,
    source: str | None = None,
) -> OwnBuildReport:
    """Check a build, copy it into the store, try its server, and make it active.

    Its backend is the one that a flag names, else the one whose plugin and devices it has. The
    version that was active stays installed. ``source`` is what it was compiled from here.

    Raises ``UsageError`` if the path is no build or the user gave no yes, ``UnknownRequest`` for a
    word that is no backend, ``Declined`` after a no, ``UnsafeLocation`` if other users could change
    the build, ``UnsafeArchive`` for what the readers refuse, ``GateFailed`` if its server does not
    run here, and the errors of the store.
    """
    path = Path(os.path.abspath(working_folder() / path))  # links stay
    requested = requested_backend(session.settings)
    _require_build(path, session.paths.data)
    store = session.store
    if not dry_run:
        yes = f"{_command(path, requested, force=force)} --yes"
        require_yes(
            session,
            f"{path} is not signed, and its programs run with your rights. Install it?",
            UsageError(
                "an unsigned build needs a yes",
                facts=(f"path: {path}", "its programs run with your rights"),
                hint=f"if you trust who made it: {yes}",
            ),
        )
    store.sweep()
    with store.staging() as staging:
        server, entries, origin = _filled(session.paths.data, staging, path)
        build = Build(staging.tree, server, requested, (), _command(path, requested, force=True))
        if build.backend == "":
            build = build._replace(backend=_backend(session, build, entries, run=not dry_run))
        receipt = _receipt(session, path, build, entries, origin)
        if source is not None:
            # The folder goes away; what it was compiled from says more.
            receipt = receipt._replace(source=source, unsigned=source)
        if dry_run:
            return OwnBuildReport("planned", receipt, None)
        # The version's id is known only here, when all files were read.
        with store.lock(receipt.id):
            check_path(staging.tree)  # as for a signed build: never run another user's file
            try:
                if not force and (found := _intact(store, receipt.id)):
                    outcome = "unchanged" if store.is_active(found.id) else "installed"
                    found = store.restate(found, tried_since_a_change(session, found))
                    store.activate(found)
                    return OwnBuildReport(outcome, found.receipt, found)
                trial = try_build(
                    session,
                    build,
                    staging.unpacked,
                    lambda report: report.devices[0].name if report.devices else None,
                )
            except GateFailed as error:
                # The settings choose among signed builds only.
                on_cpu = _command(path, "cpu", force=force)
                error.hint = error.hint.replace(CPU_OVERRIDE, on_cpu)
                raise
            number = _NUMBER.search(trial.report.version)
            version = f"b{number[1] or number[2]}" if number else receipt.version
            receipt = receipt._replace(version=version, device=trial.device)
            installed = store.commit(staging, trial.noted(receipt))
            store.activate(installed)
    return OwnBuildReport("installed", installed.receipt, installed)


def _command(path: Path, backend: str, *, force: bool) -> str:
    """Return the command that installs a build; ``backend`` is "" if no flag names it."""
    again = " --force" if force else ""
    named = f" --backend {backend}" if backend else ""
    return f"{TSUKU} install{again} --from {shell_word(str(path))}{named}"


def _require_build(path: Path, data: Path) -> None:
    """Refuse what is neither a folder nor an archive, and what other users could change.

    ``data`` has the store: a folder around it would be copied into itself, and a version is gone
    when it is uninstalled. What is compiled here may lie in ``data``, too.
    """
    with disk_errors("looking at the build", path):
        if not path.exists():
            raise UsageError(f"there is no file or folder {path}", hint=_HINT)
        if path.is_dir():
            real, versions = path.resolve(), data.resolve() / "versions"
            if real in versions.parents or versions in (real, *real.parents):
                raise UsageError(
                    f"{path} is not a build of your own",
                    facts=(f"the store of this program: {data}",),
                    hint=f"to make an installed version active: {TSUKU} use VERSION",
                )
            # First: advice on the owners of a folder that is no build could do harm.
            # A build has some hundred files: the server is among the first names.
            names = (name for _, _, files in os.walk(path) for name in files)
            if _NAME not in islice(names, _MOST_NAMES):
                raise UsageError(
                    f"{path} is not a build", facts=(f"there is no {_NAME} in it",), hint=_HINT
                )
            check_path(path)
            check_below(path)
            return
        if path.is_file() and _format_of(path):
            check_path(path)
            return
    raise UsageError(
        f"{path} is not a build",
        facts=(f"a folder is one, and an archive that ends with {', '.join(_FORMATS)}",),
        hint=f"{_HINT}; unpack an archive of another kind first",
    )


def _format_of(path: Path) -> str | None:
    name = path.name.lower()
    return next((kind for end, kind in _FORMATS.items() if name.endswith(end)), None)


def _filled(
    data: Path, staging: Staging, path: Path
) -> tuple[str, tuple[TreeEntry, ...], ArtifactRecord]:
    """Fill the staged tree; return the server's path, the tree's entries, and the source."""
    aside = staging.unpacked / OWN
    kind = None if path.is_dir() else _format_of(path)
    try:
        if kind is None:
            artifact = Artifact(url=path.as_uri(), sha256="", format="folder")
            require_space(data, size_below(path)[0])
            items = copy_folder(path, artifact, aside)
            size = sum(each.size for each in split_entries(items)[0])
            source = ArtifactRecord(path.as_uri(), _digest(items), size)
        else:
            with disk_errors("reading the build", path), open_foreign(path) as file:
                measured = Measured.of(file)
                artifact = Artifact(
                    url=path.as_uri(), sha256=measured.sha256, size=measured.size, format=kind
                )
                require_space(data, measured.size)
                file.seek(0)
                items = unpack(file, artifact, aside, Budget.of(artifact, measured.size))
            source = ArtifactRecord(artifact.url, measured.sha256, measured.size)
        placed = place([Aside(artifact, aside, items)], staging.tree, _NAME, {})
    except UnsafeArchive as error:
        error.hint = _HINT
        raise
    drop_tree(staging.unpacked)
    return (*placed, source)


def _digest(entries: Iterable[TreeEntry]) -> str:
    """Return a digest of a tree: of all paths, contents, executable flags and link targets."""
    lines = (
        f"{each.path}\0{each.target}"
        if isinstance(each, LinkEntry)
        else f"{each.path}\0{each.sha256}\0{each.executable}"
        for each in sorted(entries, key=lambda each: each.path)
    )
    return sha256("\n".join(lines).encode()).hexdigest()


def requested_backend(settings: Settings) -> str:
    """Return the backend that a flag names, "" without one. Raises ``UnknownRequest``."""
    word = meaning(settings.backend)
    if "backend" not in settings.flags or word == "auto":
        return ""
    if is_backend(word):
        return word
    raise UnknownRequest(
        f"{word} is not what a build computes with",
        hint=f"name one of these with --backend: {', '.join(row.name for row in TABLE)}",
    )


def is_backend(word: str) -> bool:
    """Tell whether a word names what a build computes with, such as ``cuda`` or ``cuda+vulkan``."""
    first, *others = word.split(JOIN)
    known = first in (row.name for row in TABLE)
    return known and len(others) == len(set(others).intersection(facts_of(first).joins))


def _backend(session: Session, build: Build, entries: Iterable[TreeEntry], *, run: bool) -> str:
    """Return the backend of a build: of its plugins, or of the devices that its server lists."""
    plugins = plugins_in(entries)
    found = [row.name for row in TABLE if row.name != "cpu" and row.plugin in plugins]
    if run and len(found) != 1:
        check_path(build.tree)
        with build_caches(
            "cpu", session.paths, session.machine.environ, session.user.note
        ) as caches:
            listing = list_devices(build._replace(backend="cpu"), caches.environ)
        listed = {backend_named(device.name) for device in listing.devices}
        # A build without plugins has its backends in the server. One with several is used with
        # those that this machine has.
        named = found or [row.name for row in TABLE if row.name != "cpu"]
        found = [name for name in named if name in listed] or found
    first = next(iter(found), "cpu")
    joined = [name for name in found if name in facts_of(first).joins]
    return JOIN.join([first, *joined])


def _receipt(
    session: Session,
    path: Path,
    build: Build,
    entries: tuple[TreeEntry, ...],
    source: ArtifactRecord,
) -> Receipt:
    hardware = probe(session.machine.host, session.settings.probe_timeout)
    variant = f"{OWN}-{build.backend}"
    has, (files, links) = detected(hardware), split_entries(entries)
    return Receipt(
        id=version_id(OWN, build.backend, [_digest(entries)]),
        release=OWN,
        sequence=0,
        version=None,
        channel="",
        repository="",
        publisher="",
        variant=variant,
        backend=build.backend,
        server=build.server,
        arguments=(),
        device=None,
        requested=variant,
        detected=has,
        line=f"requested={variant} detected=[{','.join(has)}] selected={variant} unsigned",
        reasons={},
        hardware=hardware_facts(hardware),
        artifacts=(source,),
        files=files,
        links=links,
        installed_at=clock.stamp(session.machine.now),
        tsuku_llm=__version__,
        hidden_by=hiding(session.machine.environ),
        unsigned=str(path),
    )


def _intact(store: Store, version: str) -> Installed | None:
    with suppress(TsukuError):
        found = store.find(version)
        if found:
            store.admit(found)
            return found
    return None
