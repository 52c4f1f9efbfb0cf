"""The names that may be in the folders of a store, by full pattern; all others are foreign.

Age, prefix or place alone never decide a removal. A file must have a name that this program
can have made, be of the right kind, and belong to this user or to root. Foreign files stay;
``list`` and ``prune`` report them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, StoreError
from tsuku_llm.ground.files import make_folder, read_small, write_new
from tsuku_llm.ground.folders import Folder, opened, temporaries
from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.store.in_use import IN_USE
from tsuku_llm.store.records.installed import FILE
from tsuku_llm.store.records.integrity import FINGERPRINT
from tsuku_llm.store.records.receipt import RECEIPT, RECEIPT_LIMIT
from tsuku_llm.store.records.updates import JOURNAL, MARKS

MARKER = ".tsuku-llm-store"
"""The file that marks the data folder as made by this program."""

METADATA_LOCK = "metadata-"
"""The prefix of a refresh lock's name; the repository's name follows."""

UNATTENDED_LOCK = "unattended"
"""The name of the lock that one unattended update holds."""

BUILDING_LOCK = "building"
"""The name of the lock that one build from source holds."""

POINTER_LOCK = "active"
"""The name of the lock under which the pointer is replaced."""

LASTING_LOCKS = (POINTER_LOCK, UNATTENDED_LOCK, BUILDING_LOCK)
"""The locks that are for no single file: they are kept."""

SET_ASIDE = "set-aside"
"""The folder for foreign files from versions that were removed."""

_MARK = b'{"format": 1}\n'
_SHOWN = 12

DIGEST = r"[0-9a-f]{64}"
UNIQUE = r"[0-9a-f]{16}"
VERSION = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,186}-[0-9a-f]{12}"
REPOSITORY = r"[a-z0-9][a-z0-9_-]{0,39}"
LOCK = rf"(?:{'|'.join(LASTING_LOCKS)}|{DIGEST}|{VERSION}|{METADATA_LOCK}{REPOSITORY})"
SERVER = r"[a-z0-9][a-z0-9_-]{0,63}"


class FolderNames(NamedTuple):
    """Patterns for the names of files and of folders in a folder; by default no name fits."""

    files: str = "(?!)"
    folders: str = "(?!)"

    def fits(self, folder: Folder, name: str) -> bool:
        """Tell whether this program can have made the file or folder ``name`` in ``folder``."""
        if re.fullmatch(self.files, name):
            return folder.is_file(name)
        return bool(re.fullmatch(self.folders, name)) and folder.is_folder(name)


_REPOSITORY_FILES = r"(?:repository|root|standing|refreshed|revoked|seen)\.json|current"

_STATE_FILES = r"update\.json|update-look|(?:drivers|speeds|served)\.json"
_STATE_FOLDERS = "servers|credentials|work"

_OWN_FILES = "|".join(map(re.escape, (FILE, JOURNAL, MARKS)))

# On some systems the data folder also contains the config file, the user's state and caches.
DATA = FolderNames(
    rf"{_OWN_FILES}|{temporaries(_OWN_FILES).pattern}|{re.escape(MARKER)}"
    rf"|config\.toml|{_STATE_FILES}",
    rf"versions|staging|partials|locks|metadata|state|cache|{_STATE_FOLDERS}|{SET_ASIDE}",
)
VERSIONS = FolderNames(folders=VERSION)
STAGING = FolderNames(rf"{UNIQUE}\.(?:lock|pid)", UNIQUE)
PARTIALS = FolderNames(rf"{DIGEST}(?:\.part(?:\.json)?)?", rf"{DIGEST}\.index")
LOCKS = FolderNames(rf"{LOCK}\.(?:lock|pid)")
METADATA = FolderNames(folders=REPOSITORY)
REPOSITORY_FOLDER = FolderNames(
    rf"{_REPOSITORY_FILES}|{temporaries(_REPOSITORY_FILES).pattern}", "copies|roots"
)
COPIES = FolderNames(folders=UNIQUE)
PLACES = {
    "versions": VERSIONS,
    "staging": STAGING,
    "partials": PARTIALS,
    "locks": LOCKS,
    "metadata": METADATA,
}
"""The folders that are this program's alone."""

_RECORDS = rf"{SERVER}\.json"

STATE = FolderNames(_STATE_FILES, _STATE_FOLDERS)
SERVERS = FolderNames(
    rf"{_RECORDS}|{SERVER}\.(?:log|log\.1)|(?:claim|{SERVER}\.start)\.(?:lock|pid)|{temporaries(_RECORDS).pattern}"
)


def adopt(data: Path) -> None:
    """Mark the data folder as made by this program; create it if it does not exist.

    Raises CorruptStore or UnsafeLocation if it holds something else, StoreError.
    """
    data = data.resolve()  # the data folder may be a link to a larger disk
    make_folder(data)
    if not _is_marked(data):
        require_ours(data)
        # Another process may write the same marker at this moment: that one is as good as ours.
        with disk_errors("marking the data folder", data), suppress(FileExistsError):
            write_new(data / MARKER, _MARK)


def _is_marked(data: Path) -> bool:
    with opened(data) as folder:
        return folder is not None and folder.is_file(MARKER)


def require_ours(data: Path) -> None:
    """Refuse a data folder whose places are links, or hold files although it has no marker.

    Commands that only look keep notes about metadata, and set no marker. Raises CorruptStore,
    UnsafeLocation, StoreError.
    """
    marked = _is_marked(data)
    strangers: list[Path] = []
    for name in PLACES:
        # ``opened`` refuses a link or another user's folder, also in a marked data folder.
        with opened(data, name) as folder:
            if folder is not None and not marked:
                strangers += (
                    folder.path / entry
                    for entry in folder.names()
                    if not (name == "metadata" and _has_notes(folder, entry))
                )
    if strangers:
        raise CorruptStore(
            f"{data} was not made by tsuku-llm: it holds something else",
            facts=tuple(f"path: {path}" for path in strangers[:_SHOWN]),
            hint="move these away, or set TSUKU_HOME to another folder; "
            f"if tsuku-llm did make it: touch {shell_word(str(data / MARKER))}",
        )


def _has_notes(metadata: Folder, name: str) -> bool:
    with suppress(OSError), metadata.inner(name) as repository:
        return any(REPOSITORY_FOLDER.fits(repository, entry) for entry in repository.names())
    return False


def is_version(versions: Folder, name: str) -> bool:
    """Tell whether a folder is a version, damaged or not, by its name and content.

    Either its receipt names it, or the two other files of a version are in it.
    """
    if not VERSIONS.fits(versions, name):
        return False
    with suppress(OSError), versions.inner(name) as version:
        if all(map(version.is_file, (IN_USE, FINGERPRINT))):
            return True
        with suppress(StoreError, ValueError):
            receipt = parse_object(
                read_small(version.path / RECEIPT, RECEIPT_LIMIT) or b"", ours=True
            )
            return receipt.get("id") == name
    return False
