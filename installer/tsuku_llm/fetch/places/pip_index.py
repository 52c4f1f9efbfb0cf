"""Wheels from the package index that the user's pip is configured for.

pip chooses the index, with the user's own configuration, credentials, proxies and
certificates; this module names no index. pip gets the digest, and the file that it
downloads is hashed again.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packageurl import PackageURL
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import BodyError, DigestMismatch, PackageIndexError
from tsuku_llm.ground.files import drop_tree
from tsuku_llm.ground.foreign import open_foreign, read_end
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.safe_text import printable, redacted, shortened

_CHUNK = 1 << 20
LARGEST_PACKAGE = 32 << 20
"""Bytes of a package of metadata; the official repository packs into less than 100 kB."""

_POLL = 0.2
"""Seconds between two checks of pip's progress."""

_GRACE = 5.0
"""Seconds that pip has to end after a terminate signal."""

_LOG = 1 << 20
"""Bytes of pip's last words that are searched for its errors."""

_LAST_LINES = 6
_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--ignore-requires-python",  # its Python part is never run
    "--no-cache-dir",  # pip's cache would keep a second copy of the archive
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
    "--retries=2",
    "--timeout=10",
)
_PIP = """
import os, runpy, sys, threading
def end_with_parent():
    while os.read(0, 1):
        pass
    os._exit(1)
# Another thread than pip's: it waits for nothing else, so pip cannot hold it up.
threading.Thread(target=end_with_parent, daemon=True).start()
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""The program that runs pip in a child process. Its input closes when we end; then it exits."""

_SETTINGS = {"PIP_REQUIRE_VIRTUALENV": "0", "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"}
_UNHASHED = {"PIP_REQUIRE_HASHES": "0"}
"""For a package of signed metadata: its signatures are checked, and its digest is not known."""

_BUG = "ERROR: Exception:"
"""What pip says before a traceback, for example if a limit of the system ends a download."""
_WRONG_HASH = "DO NOT MATCH THE HASHES"
CHECK_PIP = "check that pip can install packages here (pip config list), then try again"
"""What helps if pip did not get as far as the answer of an index."""

_NO_ANSWER = "Retrying (Retry("
_NOT_THERE = re.compile(
    r"Could not find a version that satisfies the requirement \S+ .*\(from versions: (.*)\)"
)
"""What pip says if an index lacks a package, with the versions of it that the index has.

It says the same, with "none", if the index did not answer or refused: pip/_internal/
resolution/resolvelib/factory.py, ``_report_single_requirement_conflict``.
"""


@dataclass(frozen=True, slots=True)
class Wheel:
    """The wheel that a package URL names; ``options`` tell pip its tags.

    Without a ``version`` it is the newest one that the index has.
    """

    project: str
    version: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.project} {self.version}".rstrip()


def parse_package_url(url: str) -> Wheel:
    """Read ``pkg:pypi/<project>@<version>?file_name=<wheel>`` (a purl).

    Raises ``PackageIndexError`` for anything else, and if the file's name is not one of
    this project and version.
    """
    try:
        purl = PackageURL.from_string(url)
        project, version, _, tags = parse_wheel_filename(dict(purl.qualifiers)["file_name"])
        matches = canonicalize_name(purl.name) == project and Version(purl.version or "") == version
    except (ValueError, KeyError) as error:
        raise _malformed(url, str(error)) from error
    if purl.type != "pypi" or not matches:
        raise _malformed(url, "it is not about the wheel that it names")
    # The options make pip accept a wheel for the wheel's platform, not for ours.
    platforms = sorted({tag.platform for tag in tags} - {"any"})
    options = [f"--platform={platform}" for platform in platforms]
    interpreter = max(tag.interpreter for tag in tags)
    # A tag py3 fits every interpreter and needs no options; cp311 and the like do.
    if found := re.fullmatch(r"(?!py[0-9])([a-z]+)([0-9]+)", interpreter):
        options += [f"--implementation={found[1]}", f"--python-version={found[2]}"]
        options += [f"--abi={abi}" for abi in sorted({tag.abi for tag in tags})]
    return Wheel(project, str(version), tuple(options))


def _malformed(url: str, reason: str) -> PackageIndexError:
    return PackageIndexError(
        "a package URL of the manifest cannot be understood",
        facts=(f"url: {url}", f"reason: {reason}"),
        hint="update tsuku-llm: the repository may use a newer format",
    )


@contextlib.contextmanager
def download_package(
    url: str, artifact: Artifact, folder: Path, network: Network, tell: Callable[[int], None]
) -> Iterator[Iterator[bytes]]:
    """Let pip download a wheel into a scratch folder below ``folder``; yield its bytes.

    ``tell`` gets the number of bytes that pip has so far.

    Raises ``PackageIndexError`` with pip's last lines, ``DigestMismatch`` if the index
    has another file of that name.
    """
    network.require_online(url)
    wheel = parse_package_url(url)
    # The caller's lock on the artifact keeps other processes of ours out of this folder.
    scratch = folder / f"{artifact.sha256}.index"
    requirement = f"{wheel.project}=={wheel.version} --hash=sha256:{artifact.sha256}"
    deadline = network.clock() + network.limits.total
    with _fetched(wheel, requirement, scratch, network, tell, deadline) as fetched:
        yield _chunks(_only_wheel(fetched, wheel))


def package_folder(name: str) -> str:
    """Return the folder that the files have in a package of metadata with this name."""
    return canonicalize_name(name).replace("-", "_")


def newest_package(url: str, scratch: Path, network: Network, deadline: float) -> bytes:
    """Let pip download the newest wheel of ``pkg:pypi/NAME``; return its bytes, not verified.

    pip runs in the folder ``scratch``, which the caller locks, until ``deadline`` at most (on the
    network's clock). Raises ``PackageIndexError`` with pip's last lines, ``BodyError`` for more
    than ``LARGEST_PACKAGE`` bytes.
    """
    name = url.removeprefix("pkg:pypi/").rstrip("/")

    def check(size: int) -> None:
        if size > LARGEST_PACKAGE:
            raise BodyError(
                f"the package {name} is refused",
                facts=(f"it has more than {LARGEST_PACKAGE:,} bytes",),
                hint="check that the package index has the right package",
            )

    # During the download too: an endless file must not fill the disk.
    with unsigned_wheel(name, scratch, network, check, deadline) as file:
        data = bytearray()
        for chunk in _chunks(file):
            data += chunk
            check(len(data))
        return bytes(data)


@contextlib.contextmanager
def unsigned_wheel(
    requirement: str,
    scratch: Path,
    network: Network,
    tell: Callable[[int], None],
    deadline: float,
) -> Iterator[Path]:
    """Let pip download the wheel of a requirement whose digest is not known; yield its path.

    ``tell`` gets the number of bytes that pip has so far. The rest is as for ``newest_package``.
    """
    wheel = Wheel(requirement, "")
    with _fetched(wheel, requirement, scratch, network, tell, deadline) as fetched:
        yield _only_wheel(fetched, wheel)


@contextlib.contextmanager
def locked_wheels(
    requirements: str, options: tuple[str, ...], scratch: Path, network: Network
) -> Iterator[list[Path]]:
    """Let pip download the wheels of requirements that have digests; yield their paths.

    pip takes them for the platform that ``options`` name, and compares each with its digests. It
    runs in the folder ``scratch``, which the caller locks; the end of the block removes it. Raises
    ``PackageIndexError`` with pip's last lines, ``DigestMismatch``.
    """
    network.require_online("the package index")
    # Only its name and its options count here: it stands for all of them in messages.
    wheel = Wheel("the packages that tsuku-llm needs", "", options)
    requirement = f"--require-hashes\n{requirements}"
    deadline = network.clock() + network.limits.total
    with _fetched(wheel, requirement, scratch, network, lambda _: None, deadline) as fetched:
        yield sorted(fetched.glob("*.whl"))


@contextlib.contextmanager
def _fetched(
    wheel: Wheel,
    requirement: str,
    scratch: Path,
    network: Network,
    tell: Callable[[int], None],
    deadline: float,
) -> Iterator[Path]:
    """Run pip in the folder ``scratch``; yield the folder with what it downloaded.

    The scratch folder is made here, and removed at the end of the block.
    """
    with disk_errors("making a scratch folder", scratch.parent):
        # An earlier run that was killed may have left one. Removing it follows no link.
        drop_tree(scratch)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        # mkdir fails if a link has that name. Only this user may write there: pip runs in this
        # folder, and Python imports modules from it.
        scratch.mkdir(0o700)
        (scratch / "wheel").mkdir(0o700)
        (scratch / "requirements.txt").write_text(f"{requirement}\n", encoding="utf-8")
    try:
        _run_pip(wheel, scratch, network, tell, deadline)
        yield scratch / "wheel"
    finally:
        drop_tree(scratch)


def _chunks(file: Path) -> Iterator[bytes]:
    with disk_errors("reading what pip fetched", file.parent), open_foreign(file) as opened:
        while chunk := opened.read(_CHUNK):
            yield chunk


def _only_wheel(folder: Path, wheel: Wheel) -> Path:
    files = sorted(folder.glob("*.whl"))
    if len(files) != 1:
        raise _failure(wheel, ("pip reported success, but left no wheel",))
    return files[0]


def _run_pip(
    wheel: Wheel, scratch: Path, network: Network, tell: Callable[[int], None], deadline: float
) -> None:
    command = children.python(_PIP, "download", *_OPTIONS, *wheel.options)
    command += ["--dest=wheel", "--requirement=requirements.txt"]
    # pip's temporary files go there too: on the same disk, visible to _size_of(), and removed.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch.resolve()))
    environ = {**network.environ, **_SETTINGS, **temporary}
    environ |= {} if wheel.version else _UNHASHED
    # pip's program reads its input, and only we have the other end: when our process ends, so does
    # the input. This works on every system, even if we end before the child begins to read.
    with (
        disk_errors("running pip", scratch),
        (scratch / "pip.log").open("wb") as log,
        children.start(
            command, cwd=scratch, env=environ, stdin=subprocess.PIPE, stdout=log, stderr=log
        ) as child,
    ):
        try:
            while network.clock() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL)  # short: between two waits we see whether we must stop
                    break
                network.check()  # another thread may have stopped the network
                tell(_size_of(scratch))
            else:
                raise _failure(wheel, ("pip did not end in time",))
        finally:
            if child.poll() is None:
                child.terminate()  # first: lets pip remove its temporary files
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_GRACE)
                # Harmless if it has ended: Popen sends no signal to a child that it has reaped.
                child.kill()
    if child.returncode:
        output = read_end(scratch / "pip.log", _LOG).decode("utf-8", "replace")
        raise _explained(wheel, output)


def _size_of(scratch: Path) -> int:
    """Measure the wheel that pip is writing in its folder for temporary files."""
    size = 0
    with contextlib.suppress(OSError):  # pip creates and removes files meanwhile
        for path in scratch.glob("*/*.whl"):
            size = max(size, path.stat().st_size)
    return size


def _explained(wheel: Wheel, output: str) -> PackageIndexError | DigestMismatch:
    # pip's errors, or else its last lines, without credentials in URLs.
    stripped = (printable(line.strip()) for line in output.splitlines())
    said = [redacted(line) for line in stripped if line]
    errors = [line for line in said if line.startswith(("ERROR:", "WARNING: Retrying"))]
    if _BUG in errors:
        # A traceback follows, and its last line says what it was.
        errors += said[-1:]
    lines = tuple(f"pip: {line[:300]}" for line in (errors or said)[-_LAST_LINES:])
    if _WRONG_HASH in output:
        return DigestMismatch(
            f"the package index has another file under the name {wheel}",
            facts=lines,
            hint="nothing was installed; tell the operator of the package index",
        )
    hint = CHECK_PIP
    missing = None if _NO_ANSWER in output else _NOT_THERE.search(output)
    if missing and missing[1] == "none":
        hint = "check the name; if it is right, pip's index lacks it (its address: pip config list)"
    elif missing:
        newest = shortened(missing[1].rpartition(", ")[2], 40)
        hint = f"pip's index has {newest} of it, not this version: ask its operator for this one"
    return _failure(wheel, lines, hint)


def _failure(wheel: Wheel, facts: tuple[str, ...], hint: str = CHECK_PIP) -> PackageIndexError:
    return PackageIndexError(
        f"pip could not fetch {wheel} from its package index", facts=facts, hint=hint
    )
