"""The installed versions and the active one, for reading only.

A version is complete or does not exist. A start needs no more than this module; ``store`` has
the code that changes the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, StoreError, TamperedInstall
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_below, check_path
from tsuku_llm.store.in_use import holding
from tsuku_llm.store.records.installed import Installed, read_pointer, read_version
from tsuku_llm.store.records.integrity import (
    differences,
    find_differences,
    list_tree,
    only_extra,
    tampered,
)
from tsuku_llm.store.records.receipt import is_version_id

_LOOKS = 5
"""How often a tree is checked whose foreign files several processes move away at once."""


class StoreReader:
    """The versions in the folder ``data``, as ``Store`` left them.

    ``note`` is called with each thing that the user should know. Every method raises StoreError
    or a subclass if the file system reports an error.
    """

    def __init__(self, data: Path, *, note: Callable[[str], None] = lambda _: None) -> None:
        self.data = data
        self._versions = data / "versions"
        self._note = note

    def find(self, version: str) -> Installed | None:
        """Find a version by its id. Raises CorruptStore if its receipt cannot be read."""
        return read_version(self._versions / version) if is_version_id(version) else None

    def installed(self) -> tuple[Installed, ...]:
        """Return every version with a readable receipt, sorted by id."""
        return tuple(
            found for found in self._look_at_all().values() if isinstance(found, Installed)
        )

    def damaged(self) -> Mapping[str, CorruptStore]:
        """Return the versions whose receipts cannot be read, with the errors."""
        found = self._look_at_all()
        return {name: error for name, error in found.items() if isinstance(error, CorruptStore)}

    def active(self) -> Installed | None:
        """Return the active version; None if none is active.

        Raises CorruptStore if the pointer or the version that it names cannot be read.
        """
        version = read_pointer(self.data).active
        if version is None:
            return None
        found = self.find(version)
        if found is None:
            raise CorruptStore(
                f"the active version {version} does not exist",
                facts=(f"path: {self._versions / version}",),
                hint=f"run {TSUKU} install, or {TSUKU} rollback",
            )
        return found

    def is_active(self, version: str) -> bool:
        """Tell whether this id is that of the active version; False if that cannot be read."""
        with suppress(StoreError):
            active = self.active()
            return active is not None and active.id == version
        return False

    def previous(self) -> Installed | None:
        """Return the version that ``rollback`` would activate; None if there is none."""
        version = read_pointer(self.data).previous
        return self.find(version) if version else None

    def check(self, installed: Installed, *, full: bool = False) -> None:
        """Refuse a tree that is not what its receipt says; ``full`` hashes every file.

        Raises UnsafeLocation if another user could replace it, TamperedInstall with the names
        that differ.
        """
        # First the folders above the tree: in another user's folder, a checked tree could be
        # replaced right after the check.
        check_path(installed.tree)
        if found := find_differences(installed.path, installed.receipt, full=full):
            raise tampered(installed.id, found, installed.receipt.reinstall)
        # Then the tree: who owns a file, or may write to it, can change it after the check.
        check_below(installed.tree)

    def admit(self, installed: Installed, *, full: bool = False) -> None:
        """Check a tree before it is used, as ``check``; move files that are not part of it away.

        A file beside the right ones may be what a server, a tool or a person left there, and must
        not refuse every later start. It may also be a plugin, which a server would load. So it is
        moved to ``set-aside`` before anything runs, and told. A changed or missing file is refused.
        The caller holds the version.
        """
        for left in reversed(range(_LOOKS)):
            try:
                # All of it each time: another process may have changed the tree meanwhile.
                self.check(installed, full=full)
            except TamperedInstall:
                # Of several starts at once, each sees files that another one is moving.
                if not left or not self._set_aside(installed):
                    raise
            else:
                return

    def _set_aside(self, installed: Installed) -> bool:
        """Move what is not part of the build; False if that is not all that is wrong with it."""
        from tsuku_llm.store.foreign import set_aside  # few trees have such files

        # Another user's store or a read-only disk; or another process was first.
        with suppress(OSError, StoreError):
            if not only_extra(differences(list_tree(installed.tree), installed.receipt)):
                return False
            for name, path in set_aside(self.data, installed.id).items():
                self._note(f"warning: {name} is not part of the build, and was moved to {path}")
        return True

    def verify(self, installed: Installed) -> tuple[str, ...]:
        """Hash every file and list every name that is not what the receipt says.

        The version is held meanwhile, so that no other process removes it. Raises NotInstalled
        if another process removes it already.
        """
        with self.hold(installed):
            return tuple(find_differences(installed.path, installed.receipt, full=True))

    def hold(self, installed: Installed) -> AbstractContextManager[int | None]:
        """Keep a version from being removed during the block.

        A child process that inherits the descriptor (None on Windows) holds the version too,
        as long as it lives. Raises NotInstalled while another process removes the version.
        """
        return holding(installed.path)

    def ids(self) -> list[str]:
        """List the ids of all versions, damaged ones included; foreign folders are left out."""
        from tsuku_llm.store.layout import is_version  # noqa: PLC0415 - a start lists nothing

        with (
            disk_errors("listing the installed versions", self._versions),
            opened(self.data, "versions") as folder,
        ):
            names = folder.names() if folder else []
            return [name for name in names if folder and is_version(folder, name)]

    def foreign(self) -> tuple[Path, ...]:
        """List the foreign paths in the folders of the store."""
        from tsuku_llm.store.foreign import foreign

        return tuple(foreign(self.data))

    def _look_at_all(self) -> dict[str, Installed | CorruptStore]:
        found: dict[str, Installed | CorruptStore] = {}
        for name in self.ids():
            try:
                found[name] = self.find(name) or CorruptStore(
                    f"{name} has no receipt",
                    facts=(f"path: {self._versions / name}",),
                    hint=f"{TSUKU} prune removes it",
                )
            except CorruptStore as error:
                found[name] = error
        return found
