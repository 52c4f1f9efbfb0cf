"""The installed version that a start uses, its programs, and the folder in which they run.

Also the replacement of this process by one of these programs.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    NotInstalled,
    StoreError,
    TsukuError,
    UnknownRequest,
    UnsafeLocation,
    did_you_mean,
)
from tsuku_llm.ground.files import make_folder
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_own_folder
from tsuku_llm.launch.plan.planning import Build, LaunchPlan, require_no_plugins
from tsuku_llm.launch.run.replace_process import replace_process
from tsuku_llm.machine.backends import (
    VENDORS,
    backends_of,
    facts_of,
    meaning,
    names_parts,
    parts_of,
)
from tsuku_llm.steps.session import Session, note_place, way_to_undo
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt

if TYPE_CHECKING:
    from tsuku_llm.launch.plan.upstream_config import ConfigValue

_WITHOUT_HTTPS = b"HTTPS is not supported"
"""What a server says that was built without; with HTTPS these words are not compiled.

See ``common_http_client`` in upstream's common/http.h.
"""

WORK = "work"
"""The folder below the state in which a server runs that no user has called from a folder."""

_LIBRARY = re.compile(r"\.(?:dll|dylib|so(?:\.[\d.]+)?)$")


class FoundProgram(NamedTuple):
    """A program of a build; ``unsigned`` is where an unsigned build came from, else None."""

    path: Path
    unsigned: str | None


def which(session: Session, tool: str | None = None) -> FoundProgram:
    """Return the server that ``serve`` would start, were its settings right, or another tool.

    A setting that names no backend counts as not set. Raises ``NotInstalled``.
    """
    try:
        installed = requested_version(session)
    except UnknownRequest:
        from tsuku_llm.steps.choosing.names import without_unknown  # noqa: PLC0415 - only for an error

        installed = requested_version(without_unknown(session))
    receipt = installed.receipt
    path = receipt.server if tool is None else tool_of(receipt, tool)
    return FoundProgram(installed.tree / path, receipt.unsigned)


def requested_version(session: Session) -> Installed:
    """Return the active version, or another installed one if only that has the requested backend.

    The user's choice is never replaced by another backend that happens to be installed. Raises
    ``NotInstalled``, and ``UnknownRequest`` if there is no such backend.
    """
    reader, backend = session.reader, session.settings.backend
    active = reader.active()
    if active and meets(active.receipt, backend):
        return active
    # An unsigned build is only taken by its own name, or if the user made it active.
    suitable = [
        each
        for each in reader.installed()
        if meets(each.receipt, backend)
        and (each.receipt.unsigned is None or each.receipt.variant == backend)
    ]
    if suitable:
        # The release in use first: the user asked for another backend, and not for another release.
        release = active.receipt.release if active else None
        return max(suitable, key=lambda each: _newest_of(each, release))
    if active is None:
        raise NotInstalled("nothing is installed yet", hint=f"run: {TSUKU} install")
    # The hint must not tell to install what does not exist.
    from tsuku_llm.steps.choosing.names import check_exists  # noqa: PLC0415 - only for an error

    try:
        check_exists(session, "backend", backend)
    except UnknownRequest as error:
        note_place(session.settings, "backend", error)
        raise
    undo = way_to_undo(
        session.settings, session.machine.environ, "llm.backend", "set llm.backend auto"
    )
    use = f"; or use what is installed: {undo}" if undo else ""
    raise NotInstalled(
        f"the backend {backend} is requested, and {active.receipt.variant} is installed",
        hint=f"run: {TSUKU} install --backend {backend}{use}",
    )


def meets(receipt: Receipt, backend: str) -> bool:
    """Return whether an installed variant is what the request asks for.

    A build for GPUs of several makers meets the name of one of them if it was installed for it, or
    if its interface listed no other GPUs then.
    """
    if backend in ("auto", receipt.backend, receipt.variant):
        return True
    backend = meaning(backend)
    if backend == "gpu":
        return receipt.backend != "cpu"
    if backend not in VENDORS:
        parts = [(part.variant, part.backend) for part in receipt.parts]
        return backend == receipt.backend or names_parts(backend, parts)
    if receipt.requested == backend or receipt.backend in backends_of(backend):
        return True
    apis = {facts_of(part).api for part in parts_of(receipt.backend)}
    makers = {
        gpu.get("vendor_id")
        for each in receipt.hardware.get("apis", ())
        if each.get("name") in apis
        for gpu in each.get("gpus", ())
        if gpu.get("kind") != "software"
    }
    return makers == {VENDORS[backend]}


def become(plan: LaunchPlan, keep: tuple[int, ...]) -> int:
    """Become the program of ``plan``; on Windows, run it, wait, and return its exit code.

    The program keeps the descriptors in ``keep``. Raises ``LaunchError``.
    """
    if sys.platform != "win32":
        replace_process(plan, keep=keep)
    # On Windows exec would return the terminal to the shell at once.
    from tsuku_llm.launch.run.supervise import supervise  # noqa: PLC0415 - only there

    code, _ = supervise(plan, keep=keep, serves=False)
    return code


def require_safe_folder(paths: Paths, folder: Path) -> None:
    """Refuse a folder in which no program of a build may run.

    ggml loads plugins from the working folder, so it must be one that only this user and root can
    write, without a plugin. What a program writes there must not get into a build: so it is no
    folder of the store. Raises ``UnsafeLocation``, and ``StoreError`` if it cannot be looked at.
    """
    check_own_folder(folder)
    with disk_errors("looking at the working folder", folder):
        real = folder.resolve()
        for ours in (paths.data, paths.state):
            if real.is_relative_to(ours.resolve()):
                raise UnsafeLocation(
                    f"{folder} belongs to tsuku-llm, and a program of a build may write there",
                    hint="change to another folder, and give paths of files from there",
                )
        require_no_plugins(folder)


def server_folder(paths: Paths, note: Callable[[str], None], cwd: Path | None) -> Path:
    """Return the folder in which a server runs: ``cwd``, or one of our own for it.

    ``cwd`` is the folder of the user who called. None and the root folder mean that no user did.
    The user is told if it cannot be used. Raises ``UnsafeLocation`` if our own is not safe either.
    """
    if cwd is not None and cwd != Path(cwd.anchor):
        try:
            require_safe_folder(paths, cwd)
        except StoreError as error:
            note(
                f"warning: {error.message}: the server runs in another folder, and relative paths "
                "in a preset or in the request of a tool do not mean this one"
            )
        else:
            return cwd
    own = paths.state / WORK
    try:
        make_folder(own, private=True)
    except UnsafeLocation:
        raise
    except StoreError:
        if sys.platform == "win32":
            raise
        # A container or a service whose disk is read-only: only root can write to this one.
        return Path(os.sep)
    require_no_plugins(own)
    return own


def build_of(installed: Installed) -> Build:
    """Return what ``launch`` needs to know of an installed version."""
    receipt = installed.receipt
    return Build(
        tree=installed.tree,
        server=receipt.server,
        backend=receipt.backend,
        arguments=receipt.arguments,
        reinstall=receipt.reinstall,
        takes=receipt.takes,
        reads_config=receipt.reads_config,
    )


def read_in_files(receipt: Receipt, environ: Mapping[str, str]) -> tuple[ConfigValue, ...]:
    """Return what the server of a build would read in upstream's ``config.ini``."""
    if not receipt.reads_config:
        return ()
    from tsuku_llm.launch.plan.upstream_config import configured

    return tuple(configured(environ, receipt.takes).values())


def told_to(session: Session) -> Mapping[str, str]:
    """Return the environment with what the server of the next start reads in files."""
    environ = session.machine.environ
    # The start itself tells what is wrong with the build.
    with suppress(TsukuError):
        read = read_in_files(requested_version(session).receipt, environ)
        return {**{each.variable: each.value for each in read}, **environ}
    return environ


def tool_of(receipt: Receipt, name: str) -> str:
    """Return the path in the tree of the tool called ``name``, with or without ``.exe``.

    Raises ``NotInstalled``, whose facts list the tools that exist.
    """
    tools = tools_of(receipt)
    if name.removesuffix(".exe") in tools:
        return tools[name.removesuffix(".exe")]
    # Nearly all begin with "llama-": that makes no two of them similar.
    before = _PREFIX if name.startswith(_PREFIX) else ""
    known = [each.removeprefix(before) for each in tools if each.startswith(before)]
    otherwise = f"run one of these: {TSUKU} run TOOL -- ARGUMENTS"
    if receipt.channel == "index":
        otherwise = f"these are all that builds of the package index bring; {_ALL_TOOLS}"
    raise NotInstalled(
        f"{receipt.variant} of {receipt.release} has no tool {name}",
        facts=tuple(f"tool: {each}" for each in tools),
        hint=did_you_mean(name, known, otherwise, before=before),
    )


_PREFIX = "llama-"
_ALL_TOOLS = f"upstream's own bring the others: {TSUKU} install --channel stable"


def tools_of(receipt: Receipt) -> Mapping[str, str]:
    """Return the programs in the server's folder: names without ``.exe``, and paths."""
    folder = PurePosixPath(receipt.server).parent
    links = {link.path for link in receipt.links}
    # Archives made on Windows do not mark programs as executable.
    files = {file.path for file in receipt.files if file.executable or file.path.endswith(".exe")}
    paths = sorted(links | files | {receipt.server})
    beside = [path for path in map(PurePosixPath, paths) if path.parent == folder]
    return {
        path.name.removesuffix(".exe"): str(path)
        for path in beside
        if not _LIBRARY.search(path.name)
    }


def installed_variant(reader: StoreReader, variant: str, release: str) -> Installed | None:
    """Return the newest installed version of a variant; a version of ``release`` comes first."""
    found = [each for each in reader.installed() if each.receipt.variant == variant]
    return max(found, key=lambda each: _newest_of(each, release), default=None)


def _newest_of(installed: Installed, release: str | None) -> tuple[bool, int]:
    """Return the key that orders versions by age, with those of ``release`` last."""
    return installed.receipt.release == release, installed.receipt.sequence


def lacks_https(installed: Installed) -> bool:
    """Tell whether the server, or a library of llama.cpp beside it, has the words of a refusal."""
    for file in installed.receipt.files:
        name = file.path.rpartition("/")[2]
        # Not the libraries of ggml: a backend has hundreds of megabytes, and talks to no host.
        if "llama" not in name or not file.size:
            continue
        with (
            (installed.tree / file.path).open("rb") as content,
            mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if data.find(_WITHOUT_HTTPS) >= 0:
                return True
    return False
