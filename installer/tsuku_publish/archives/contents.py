"""The content and the needs of a downloaded archive: read once, then recorded.

A record is stored as ``facts/archives/<sha256>.json``. The program's own code unpacks the archive,
so a record lists exactly what an install would write.
"""

import json
import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact, Measured
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import open_foreign, parse_object, read_foreign
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry
from tsuku_publish.archives.binaries import file_names, floors_of, needs_of
from tsuku_publish.errors import LARGEST_FILE, PublishError, in_one_line, reading

SERVERS = ("llama-server", "llama-server.exe")
"""The names of upstream's server, on Windows the second."""
_PROCESSOR = re.compile(r"(?:lib)?ggml-cpu-([\w.+-]+)\.(?:so|dll|dylib)")


@dataclass(frozen=True, slots=True)
class Contents:
    """A recorded archive.

    ``listing`` holds ``size``, ``files``, ``links`` and ``pieces`` as in a release file. ``floors``
    are the measured lowest versions: ``glibc``, ``libstdcxx``, ``macos``, ``vcruntime``.
    ``device_code`` has the ``sass`` and ``ptx`` of each file with device code, ``gfx`` the AMD GPUs
    of each HIP library. ``libraries`` are those that its files need and that it does not bring.
    ``servers`` has the platforms that each file called as the server can run on, as its header
    says; None in a record that was made before headers were read.
    """

    listing: Mapping[str, Any]
    floors: Mapping[str, str]
    device_code: Mapping[str, Mapping[str, list[str]]]
    libraries: tuple[str, ...]
    gfx: Mapping[str, list[str]] = field(default_factory=dict)
    servers: Mapping[str, list[str]] | None = None

    @property
    def processors(self) -> tuple[str, ...]:
        """The kinds of processors that it has a library for: "haswell", "zen4", ..."""
        found = (_PROCESSOR.fullmatch(name) for name in sorted(self.brings))
        return tuple(each[1] for each in found if each)

    @property
    def brings(self) -> frozenset[str]:
        """The names under which a loader finds its files."""
        entries = (*self.listing["files"], *self.listing.get("links", ()))
        return file_names(entry["path"] for entry in entries)


def load_contents(folder: Path) -> dict[str, Contents]:
    """Return every record of a folder by its archive's SHA-256. Raises ``PublishError``."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with reading(path):
            raw = parse_object(read_foreign(path, LARGEST_FILE))
            found[path.stem] = Contents(
                raw["listing"],
                raw["floors"],
                raw["device_code"],
                tuple(raw["libraries"]),
                raw.get("gfx", {}),
                raw.get("servers"),
            )
    return found


def save(folder: Path, sha256: str, contents: Contents) -> None:
    """Record an archive, in lines that people can review."""
    record = {
        "listing": contents.listing,
        "floors": contents.floors,
        "device_code": contents.device_code,
        **({"gfx": contents.gfx} if contents.gfx else {}),
        "libraries": contents.libraries,
        **({} if contents.servers is None else {"servers": contents.servers}),
    }
    make_folder(folder)
    replace_file(folder / f"{sha256}.json", f"{json.dumps(record, indent=1)}\n".encode())


def read_archive(path: Path, artifact: Artifact, take: Collection[str] = ()) -> Contents:
    """Verify an archive's digest and size, unpack it in a temporary folder, and read its content.

    ``take`` are the only files that count, all if it is empty. Raises ``PublishError``.
    """
    with open_foreign(path) as file:
        # Verify before unpacking: only the recorded archive may be opened.
        measured = Measured.of(file)
    size = measured.size
    if measured.sha256 != artifact.sha256:
        raise PublishError(f"{path.name} is another file: its SHA-256 is {measured.sha256}")
    if artifact.size not in (None, size):
        raise PublishError(f"{path.name} has {size} bytes, and {artifact.size} are recorded")
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        try:
            unpacked = unpack(path, artifact, Path(folder))
        except TsukuError as error:
            raise PublishError(f"{path.name}: {in_one_line(error)}") from error
        if missing := {*take} - {item.path for item in unpacked}:
            raise PublishError(f"{path.name} has no {', '.join(sorted(missing))}")
        unpacked = tuple(item for item in unpacked if item.path in take or not take)
        files = [item for item in unpacked if isinstance(item, FileEntry)]
        needs = {item.path: each for item in files if (each := needs_of(Path(folder, item.path)))}
    links = [item._asdict() for item in unpacked if isinstance(item, LinkEntry)]
    names = file_names(item.path for item in unpacked)
    asked = {library for each in needs.values() for library in each.libraries}
    return Contents(
        listing={
            "size": size,
            "files": [item.document() for item in files],
            **({"links": links} if links else {}),
            "pieces": {"size": measured.pieces.size, "sha256": [*measured.pieces.sha256]},
        },
        floors=floors_of(needs.values(), names),
        device_code={
            name: {"sass": [*each.device_code.sass], "ptx": [*each.device_code.ptx]}
            for name, each in needs.items()
            if each.device_code
        },
        # Libraries in the archive are found next to the program.
        libraries=tuple(sorted(asked - names)),
        gfx={name: [*each.gfx] for name, each in needs.items() if each.gfx},
        servers={
            name: sorted(each.platforms)
            for name, each in needs.items()
            if name.rpartition("/")[2] in SERVERS
        },
    )
