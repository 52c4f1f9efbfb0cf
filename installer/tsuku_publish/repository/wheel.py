"""A wheel of nothing but a signed repository, so that clients get it wherever pip works.

Its files lie below one folder of the package's name, as they lie on a web server. Clients never
import or run anything of it; they verify the files as from any other place. The same repository
gives the same bytes.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog.copies import TIMESTAMP
from tsuku_llm.fetch.places.pip_index import LARGEST_PACKAGE, package_folder
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.repository.checking import first_root, verify
from tsuku_publish.repository.copies import PACKAGE_NAME, RepositoryFolder

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the wheel: a zip file cannot have an earlier one."""


def write_wheel(source: Path, name: str, folder: Path) -> Path:
    """Write the wheel of the repository in ``source`` into a folder; return its path.

    Its version is that of the timestamp, so pip takes the newest state. Raises ``PublishError`` for
    a repository that a client would refuse, for a name that pip would not accept, and for a wheel
    of the same version with other content.
    """
    if not PACKAGE_NAME.fullmatch(name):
        raise PublishError(f"{name!r} cannot be the name of a package")
    copy = RepositoryFolder(source)
    version = verify(copy, first_root(copy)).roles["timestamp"].version
    data = make_wheel(current_files(copy), name, version)
    if len(data) > LARGEST_PACKAGE:
        raise PublishError(f"the wheel has {len(data):,} bytes; clients take {LARGEST_PACKAGE:,}")
    path = folder / f"{package_folder(name)}-{version}-py3-none-any.whl"
    try:
        # An index never replaces a file, so a second content would be for some users only.
        if path.exists() and read_foreign(path) != data:
            raise PublishError(f"other content exists under the same version: {path}")
        make_folder(folder)
        replace_file(path, data)
    except OSError as error:
        raise PublishError(f"{path} cannot be written: {error.strerror or error}") from error
    except TsukuError as error:
        raise PublishError(f"{path} cannot be written: {in_one_line(error)}") from error
    return path


def current_files(copy: trust.Copy) -> dict[str, bytes]:
    """Return the files of a repository's present state, with every root.

    A served folder also has the files of earlier states. Raises ``PublishError``.
    """
    repository = verify(copy, first_root(copy))
    versions = {role: state.version for role, state in repository.roles.items()}
    names = [f"metadata/{version}.root.json" for version in range(1, versions["root"] + 1)]
    names += [TIMESTAMP]
    names += [
        trust.file_name(role, version)
        for role, version in versions.items()
        if role not in ("root", "timestamp")
    ]
    names += [target.name for target in repository.targets.values()]
    found = {name: copy.read(name) for name in names}
    return {name: data for name, data in found.items() if data is not None}


def make_wheel(files: Mapping[str, bytes], name: str, version: int) -> bytes:
    """Return the bytes of a wheel with these files of a repository."""
    inside = package_folder(name)
    info = f"{inside}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "Summary: A signed repository for tsuku-llm, which verifies it: data, and no code\n"
    kind = "Wheel-Version: 1.0\nGenerator: tsuku-publish\nRoot-Is-Purelib: true\n"
    content = {f"{inside}/{path}": data for path, data in sorted(files.items())}
    content[f"{info}/METADATA"] = about.encode()
    content[f"{info}/WHEEL"] = f"{kind}Tag: py3-none-any\n".encode()
    lines = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    content[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            # Else these would say on which system the wheel was made.
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return out.getvalue()
