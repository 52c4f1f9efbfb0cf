"""The wheel of this program, put together again from the files of the running copy."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath

import tsuku_llm
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.steps.program.copy_facts import own_distribution

_OF_THE_INSTALLER = re.compile(
    r"(?:.*/)?__pycache__/.*|[^/]+\.dist-info/(?:INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_.*)"
)
"""The files that an installer adds to those of a wheel."""

_SCRIPTS = re.compile(r"(?:\.\./)+(?:bin|Scripts)/[^/]+")
"""The commands; each installer makes them from the entry points."""

_HINT = (
    "name a wheel of tsuku-llm with --wheel FILE, or leave the program out with --no-program; "
    "ci/package OUT makes a wheel in a clone"
)


def own_wheel() -> tuple[str, bytes]:
    """Return the name and the content of a wheel of the running copy. Raises ``UsageError``."""
    own = own_distribution(Path(tsuku_llm.__file__).parent)
    if own is None:
        raise UsageError(
            "this copy of tsuku-llm was not installed, so it cannot be put into a bundle",
            facts=(f"it runs from {Path(tsuku_llm.__file__).parent}",),
            hint=_HINT,
        )
    return wheel_of(own)


def wheel_of(own: Distribution) -> tuple[str, bytes]:
    """Make the wheel of an installed distribution again: the same files give the same bytes.

    The files must be what RECORD says. Raises ``UsageError``.
    """
    files = dict(sorted(_recorded_files(own)))
    folder = next((name.partition("/")[0] for name in files if ".dist-info/" in name), "")
    if f"{folder}/WHEEL" not in files:
        raise _refused(own, "it is an editable install, or its metadata is not whole")
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    for name, data in files.items():
        writer.writerow((name, f"sha256={_digest(data)}", len(data)))
    writer.writerow((f"{folder}/RECORD", "", ""))
    files[f"{folder}/RECORD"] = table.getvalue().encode()
    tags = re.findall(r"^Tag: (\S+)$", files[f"{folder}/WHEEL"].decode(), re.MULTILINE)
    return f"{folder.removesuffix('.dist-info')}-{_joined(tags)}.whl", packed(files)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a zip file of these files, which has no dates and is not compressed."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content)
    return data.getvalue()


def _recorded_files(own: Distribution) -> Iterator[tuple[str, bytes]]:
    """Read the files of a distribution, under their names in its wheel."""
    rows = list(csv.reader((own.read_text("RECORD") or "").splitlines()))
    info = next((row[0].partition("/")[0] for row in rows if ".dist-info/" in row[0]), "")
    data = f"{info.removesuffix('.dist-info')}.data/data"
    prefix = Path(sysconfig.get_path("data")).resolve()
    for recorded, digest, _ in rows:
        name = recorded
        if _OF_THE_INSTALLER.fullmatch(name) or _SCRIPTS.fullmatch(name):
            continue
        path = Path(str(own.locate_file(name)))
        if "__editable__" in name or name.startswith("/"):
            raise _refused(own, "it is an editable install")
        if ".." in PurePosixPath(name).parts:
            # A man page: a file of the environment, and not of the package.
            name = f"{data}/{path.resolve().relative_to(prefix).as_posix()}"
        try:
            content = read_foreign(path)
        except OSError as error:
            raise _refused(own, f"{path} cannot be read: {error.strerror}") from error
        if digest != f"sha256={_digest(content)}":
            raise _refused(own, f"{path} was changed after the installation")
        yield name, content


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _joined(tags: list[str]) -> str:
    """Write tags as the name of a wheel has them: every combination of the parts."""
    parts = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(part)) for part in parts)


def _refused(own: Distribution, reason: str) -> UsageError:
    return UsageError(
        f"this copy of {own.metadata['Name']} cannot be put into a bundle",
        facts=(reason, f"it is installed in {sys.prefix}"),
        hint=_HINT,
    )
