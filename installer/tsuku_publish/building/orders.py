"""One run of ``build``: from the words of the command line to finished builds."""

from __future__ import annotations

import contextlib
import errno
import os
import platform as host
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from filelock import FileLock, Timeout

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import drop_tree
from tsuku_llm.ground.records import documented
from tsuku_publish.building.bases import WantedBase, make_base, opened_base, wanted_base
from tsuku_publish.building.compiling import Order, compile_variant
from tsuku_publish.building.matrix import BuildMatrix, load_matrix
from tsuku_publish.building.place import ToolPlace
from tsuku_publish.building.recipe import (
    BuildWishes,
    backends_of,
    recipe,
    require_useful,
    switches_of,
    wanted,
)
from tsuku_publish.building.result import finish, require_replaceable
from tsuku_publish.building.source import SOURCES, Source, opened_source
from tsuku_publish.building.toolchain import detect
from tsuku_publish.errors import PublishError

MARK = ".tsuku-llm-build"
"""The file that says that a work folder is ours: in another one, nothing is removed."""

_HARMFUL = re.compile(r"""["$;=\\]|[^\S ]""")
"""What CMake, or an option of a compiler, takes for something else in a folder's name."""

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@documented("source", "builds", "unmade")
@dataclass(frozen=True, slots=True)
class Orders:
    """Everything of one run; ``source`` is None if none was named, which is enough to show it.

    ``unmade`` are bases that are not made yet: what is in them is not known, and what would be
    built in them is not in ``builds``.
    """

    builds: tuple[Order, ...]
    source: Source | None
    matrix: BuildMatrix
    unmade: tuple[WantedBase, ...] = ()


@contextlib.contextmanager
def orders(
    wishes: BuildWishes,
    work: Path,
    into: Path,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    only_show: bool,
) -> Iterator[Orders]:
    """Yield what is to be built with what; the source is there for the block.

    Without a variant, ``GGML_CUDA=1`` and its siblings in the environment say it. To ``only_show``
    it, only a fetched archive is kept, no base is made, and tools may be missing. Raises
    ``UsageError``, ``MissingTools``, and the errors of ``opened_source``, ``make_base`` and
    ``opened_base``.
    """
    matrix = load_matrix()
    words = [*wishes.variants] or [word for word in [wanted(environ)] if word]
    if not words:
        raise UsageError(
            "no variant is named",
            facts=(f"backends: {', '.join(matrix.backends)}",),
            hint="name one, such as cpu, vulkan or cuda+vulkan, or set GGML_CUDA=1",
        )
    backends = [backends_of(word, matrix) for word in words]
    require_useful(wishes, chain.from_iterable(backends), matrix)
    named, here = wishes.base, this_platform()
    bases = [
        wanted_base(named, word, matrix, work, here) if named is not None else None
        for word in words
    ]
    with contextlib.ExitStack() as stack:
        unmade = {base.root: base for base in bases if base and not base.root.is_dir()}
        if not only_show:
            if work.resolve() == into.resolve():
                raise UsageError(
                    f"{work} is named for the builds and for the work on them",
                    hint="name another folder with --work, such as one in it",
                )
            stack.enter_context(_held(work))
            while unmade:
                make_base(unmade.popitem()[1], environ, tell)
        ready = [
            (word, detect(matrix, each, environ, platform=here, place=place))
            for word, each, base in zip(words, backends, bases, strict=True)
            if not (base and base.root in unmade)
            for place in [opened_base(base, here) if base else ToolPlace()]
        ]
        for _, tools in () if only_show else ready:
            tools.require_complete()
            _require_usable(tools.place.inside(work))
        source = None
        if wishes.source is not None:
            near = work
            if only_show:
                near = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsuku-llm-")))
            source = stack.enter_context(
                opened_source(
                    wishes.source, wishes.release, work, near, environ, apart=(work, into)
                )
            )
        options = source.options if source else frozenset()
        planned = []
        for word, tools in ready:
            switches = switches_of({**tools.place.given, **environ}, options)
            planned.append(Order(recipe(word, matrix, tools, wishes, switches), tools, source))
        names = [order.recipe.variant for order in planned]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"{min(twice)} is named twice", hint="name each variant once")
        yield Orders(tuple(planned), source, matrix, tuple(unmade.values()))


def build(
    planned: Orders,
    source: Source,
    *,
    work: Path,
    into: Path,
    jobs: int,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
) -> Orders:
    """Build the variants one after the other; each is complete in ``into`` before the next begins.

    Return the orders with their results.

    Raises ``UsageError`` for a folder in ``into`` that is none of ours, ``BuildFailed``,
    ``NoSpace``, and the errors of the disk.
    """
    # Before hours of compiling.
    with disk_errors("writing the builds", into):
        there = next(each for each in (into, *into.absolute().parents) if each.exists())
        if not os.access(there, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    for order in planned.builds:
        require_replaceable(into / order.recipe.variant)
    finished = []
    for order in planned.builds:
        name = order.recipe.variant
        folder = work / name
        with disk_errors("making a folder", folder):
            folder.mkdir(exist_ok=True)
        tell(f"{name}: compiling in {folder}; its log is {folder / 'build.log'}")
        continued = compile_variant(order, source, folder, jobs, environ)
        result = finish(
            order,
            source,
            planned.matrix,
            folder,
            into,
            environ=environ,
            continued=continued,
        )
        finished.append(replace(order, result=result))
    return replace(planned, builds=tuple(finished))


def _require_usable(folder: Path) -> None:
    """Raise ``UsageError`` for a place in which CMake or a compiler gets another name."""
    if found := _HARMFUL.search(str(folder)):
        raise UsageError(
            f"CMake cannot build in {folder}",
            facts=(f"its name has {found[0]!r}",),
            hint="name another folder with --work; builds and the source may be where they are",
        )


@contextlib.contextmanager
def _held(work: Path) -> Iterator[None]:
    """Hold the folder in which it compiles; remove what killed runs left. One run may use it."""
    mark = work / MARK
    with disk_errors("making a folder", work):
        work.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            if any(work.iterdir()):
                raise UsageError(
                    f"{work} is no work folder of this program, which removes older work there",
                    hint="name another folder with --work; it need not exist",
                )
            # Two first runs may both write it.
            mark.write_text("`tsuku-publish build` compiles here: remove it to free its space.\n")
    lock = FileLock(work / ".lock")
    with disk_errors("locking the work folder", work):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise PublishError(
                f"{work} is in use by another build",
                facts=("a build that was killed needs up to ten seconds to end",),
                hint="wait until it is done; tsuku-publish build takes another folder with --work",
            ) from None
    try:
        # Unpacked, fetched and copied sources whose name they would get when complete. We have
        # the lock, so no living run is at work on them.
        for pattern in (".unpacked-*", f"{SOURCES}/.*", "*/source.*"):
            for left in work.glob(pattern):
                drop_tree(left)
        yield
    finally:
        lock.release()


def this_platform() -> str:
    """Return the platform of this machine as a release file names it, such as ``linux-amd64``."""
    machine = host.machine().lower()
    system = "windows" if sys.platform == "win32" else sys.platform
    return f"{system}-{_MACHINES.get(machine, machine)}"
