"""The files of a tree that two builds of one release make: which of the second join the first.

Both builds come from one source, so the second one's plugin speaks the interface of the first
one's libraries, and ggml checks that again when it loads a plugin. Everything else of the second
is only what the first lacks. Pure, except for ``join``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from tsuku_llm.archive.placing import Aside, Moves, arrange, check_names, move
from tsuku_llm.catalog.manifest import Artifact, Variant
from tsuku_llm.ground.errors import CannotCombine, UnsafeArchive
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry
from tsuku_llm.machine.backends import facts_of

# Some names have more dots, such as "libx.abi3.so" and "libx.so.1.2-rc".
_LIBRARY = re.compile(r"(?P<stem>[^.]+)\.(?:.*\.)?(?:so|dll|dylib)(?:\..*)?", re.IGNORECASE)
_GGML = re.compile(r"(?:lib)?ggml-(?P<plugin>[\w-]+)", re.IGNORECASE)
# The libraries of llama.cpp itself; upstream has no others in both builds.
_OF_THE_SOURCE = re.compile(r"(?:lib)?(?:ggml|llama|mtmd)(?:-.*)?", re.IGNORECASE)
_BASE = "base"
"""What follows "ggml-" in the name of the one library that is no plugin."""

_SHOWN = 5
_HINT = "take one of the two builds"


def compose(
    first: Iterable[TreeEntry], second: Iterable[TreeEntry], plugin: str
) -> tuple[TreeEntry, ...]:
    """Return what the second build adds to the tree of the first, sorted by path.

    ``plugin`` is the second backend's ``BackendFacts.plugin``. Of a path that both have, the first
    build's stays: the same bytes, or another compilation of the same program, library or text of
    llama.cpp. Plugins of other backends than the second's own come from the first only.

    Raises ``CannotCombine`` if a path would have two meanings: a file in one build and a link or
    folder in the other, a link with two targets or to a file that is not the same in both, or
    another project's library in two versions. Raises it also if the second has no plugin of its
    own, and if the first has that plugin.
    """
    base = {item.path: item for item in first}
    # Under any name: ggml would load one of the two.
    if own := [path for path in base if _plugin_of(path) == plugin]:
        raise CannotCombine(
            f"the first build has the plugin for {plugin} already",
            facts=(f"in the first: {min(own)}",),
            hint=_HINT,
        )
    others = {item.path: item for item in second}
    added: list[TreeEntry] = []
    conflicts: list[str] = []
    for path, item in sorted(others.items()):
        if _plugin_of(path) not in (None, plugin):
            continue
        if here := base.get(path):
            conflicts += _two_meanings(here, item)
            continue
        added.append(item)
        # A link into the first build's files would lead to something else than it was signed for.
        target = normpath(f"{path}/../{item.target}") if isinstance(item, LinkEntry) else ""
        if target in base and base[target] != others.get(target):
            conflicts.append(f"{path}: a link to {target}, which is not the same in both")
    if plugin not in plugins_in(added):
        raise CannotCombine(
            f"the second build has no plugin for {plugin} that the first could load", hint=_HINT
        )
    if not conflicts:
        try:
            check_names([*base.values(), *added])
        except UnsafeArchive as error:
            conflicts = [error.message, *error.facts]
    if conflicts:
        more = len(conflicts) - _SHOWN
        shown = (*conflicts[:_SHOWN], *((f"and {more} more",) if more > 0 else ()))
        raise CannotCombine(
            "the two builds have different files of the same name",
            facts=shown,
            hint=_HINT,
        )
    return tuple(added)


def kept_artifacts(variant: Variant) -> tuple[Artifact, ...]:
    """Return a variant's archives with the files that its tree has of them.

    Only a combined variant's tree lacks some. Without the signed lists of all archives, nothing is
    known before they are unpacked, and an added archive is returned without its list.
    Raises ``CannotCombine``.
    """
    if not variant.parts:
        return variant.artifacts
    first, second = variant.parts
    shared = {artifact.sha256 for artifact in first.artifacts}
    added = [each for each in variant.artifacts if each.sha256 not in shared]
    if any(each.files is None for each in variant.artifacts):
        kept = {each.sha256: replace(each, files=None, links=()) for each in added}
    else:
        added_entries = _added(
            variant, first.server, second.server, _entries(first), _entries(second)
        )
        taken = {entry.path for entry in added_entries}
        kept = {
            each.sha256: replace(
                each,
                files=tuple(file for file in each.files or () if file.path in taken),
                links=tuple(link for link in each.links if link.path in taken),
            )
            for each in added
        }
    return tuple(kept.get(each.sha256, each) for each in variant.artifacts)


def needed_artifacts(variant: Variant) -> tuple[tuple[Artifact, Artifact], ...]:
    """Return the archives without which a variant's tree cannot be made, each with what it keeps.

    The second one has the files that the tree has of the first, as ``kept_artifacts`` says. Left
    out are those of a combined variant of which the tree has nothing. Raises ``CannotCombine``.
    """
    pairs = zip(variant.artifacts, kept_artifacts(variant), strict=True)
    return tuple(
        (whole, part)
        for whole, part in pairs
        if part is whole or part.files is None or part.files or part.links
    )


def _entries(variant: Variant) -> list[TreeEntry]:
    found: list[TreeEntry] = []
    for artifact in variant.artifacts:
        found += artifact.files or ()
        found += artifact.links
    return found


def join(
    variant: Variant,
    asides: Iterable[Aside],
    tree: Path,
    server: str,
    present: Mapping[str, TreeEntry],
) -> tuple[TreeEntry, ...]:
    """Move what a second build adds into the first one's tree; return what was moved.

    What is in the archives decides, as they have no signed lists. ``server`` is its path in the
    first build, ``present`` what the tree has. Raises ``CannotCombine`` and ``UnsafeArchive``
    before it moves anything.
    """
    archives = tuple(asides)
    moves: dict[str, tuple[Path, TreeEntry]] = {
        item.path: (each.folder / item.path, item)
        for each in archives
        if each.artifact.files is not None
        for item in each.items
    }
    found = variant.parts[1].server
    # The layout of archives without a signed list is found, as for a build alone.
    if loose := [each for each in archives if each.artifact.files is None]:
        listed = {path: item for path, (_, item) in moves.items()}
        found, arranged = arrange(loose, found, listed)
        moves |= arranged
    entries = [item for _, item in moves.values()]
    added = _added(variant, server, found, present.values(), entries)
    taken: Moves = {item.path: moves[item.path] for item in added}
    move(taken, tree)
    return added


def join_listed(
    asides: Sequence[Aside], kept: Sequence[Artifact], tree: Path
) -> tuple[TreeEntry, ...]:
    """Move the files of ``kept``, a result of ``kept_artifacts``; return what was moved."""
    moves: dict[str, tuple[Path, TreeEntry]] = {}
    for aside, artifact in zip(asides, kept, strict=True):
        paths = {file.path for file in artifact.files or ()}
        paths |= {link.path for link in artifact.links}
        wanted = (item for item in aside.items if item.path in paths)
        moves |= {item.path: (aside.folder / item.path, item) for item in wanted}
    move(moves, tree)
    return tuple(item for _, item in moves.values())


def plugins_in(entries: Iterable[TreeEntry]) -> frozenset[str]:
    """Return the plugins of a build, by the part of their names after "ggml-"."""
    return frozenset(found for each in entries if (found := _plugin_of(each.path)))


def _added(
    variant: Variant,
    server: str,
    other: str,
    first: Iterable[TreeEntry],
    second: Iterable[TreeEntry],
) -> tuple[TreeEntry, ...]:
    """Return what the second build adds to the tree; an error names the commands for each build."""
    try:
        _require_one_folder(server, other)
        return compose(first, second, facts_of(variant.parts[1].backend).plugin)
    except CannotCombine as error:
        ways = (f"{TSUKU} install --backend {each.name}" for each in variant.parts)
        error.hint = f"{_HINT}: {'; or: '.join(ways)}"
        raise


def _require_one_folder(first: str, second: str) -> None:
    """Raise ``CannotCombine`` unless both servers are the same path: ggml loads plugins there."""
    if first != second:
        raise CannotCombine(
            "the two builds have their servers in different folders",
            facts=(f"the first: {first}", f"the second: {second}"),
            hint=_HINT,
        )


def _plugin_of(path: str) -> str | None:
    """Return the part of a plugin's name after "ggml-"; None for what is no plugin."""
    library = _LIBRARY.fullmatch(path.rpartition("/")[2])
    found = library and _GGML.fullmatch(library["stem"])
    return found["plugin"].lower() if found and found["plugin"].lower() != _BASE else None


def _two_meanings(first: TreeEntry, second: TreeEntry) -> list[str]:
    path = first.path
    if isinstance(first, LinkEntry) and isinstance(second, LinkEntry):
        if first.target == second.target:
            return []
        return [f"{path}: a link to {first.target} in one, to {second.target} in the other"]
    if not (isinstance(first, FileEntry) and isinstance(second, FileEntry)):
        return [f"{path}: a file in one, a link in the other"]
    library = _LIBRARY.fullmatch(path.rpartition("/")[2])
    foreign = library is not None and not _OF_THE_SOURCE.fullmatch(library["stem"])
    if first.sha256 != second.sha256 and foreign:
        return [f"{path}: a library of another project, in two versions"]
    return []
