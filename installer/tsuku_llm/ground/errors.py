"""Every error that the program raises on purpose, with its slug and exit code.

The library says what happened; only ``cli`` prints and exits. The module that owns a foreign
library wraps its exceptions, always with ``from``. The tree is that of the classes below, and
``docs/reference/errors.md`` has all of them with their exit codes, causes and cures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, before: str = "") -> str:
    """Return the hint for a name that does not exist: the most similar one, or ``otherwise``.

    ``before`` stands before each of the names: two names are not similar because both have it.
    """
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower().removeprefix(before.lower()), by_lower, 1)
    return f"did you mean {before}{by_lower[near[0]]}?" if near else otherwise


class TsukuError(Exception):
    """An error with its message, the facts, and a hint.

    ``message`` is one sentence without a final full stop; ``facts`` are further lines
    (one each, already worded); ``hint`` is one line of what to do.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, facts: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        self.hint = hint

    @property
    def told(self) -> str:
        """The message and the facts, in one line."""
        return "; ".join((self.message, *self.facts))


class UsageError(TsukuError):
    """A request that is wrong on every machine."""

    slug = "bad-usage"
    exit_code = 2


class ConfigError(UsageError):
    """A setting that is unreadable, malformed or has a value that does not exist."""

    slug = "bad-config"


class UnknownModel(UsageError):
    """A name of a model that no model of this machine has, or several."""

    slug = "unknown-model"


class SnapshotError(UsageError):
    """A recorded machine that cannot be read or written."""

    slug = "bad-snapshot"


class SelectionError(TsukuError):
    """No variant that fits this machine or the request; ``facts`` has every reason."""

    slug = "no-variant"
    exit_code = 3


class UnknownRequest(SelectionError):
    """A backend, variant, release, channel or platform that does not exist."""

    slug = "unknown-request"


class WrongBundle(SelectionError):
    """A bundle that has nothing for this machine, or for what was asked."""

    slug = "wrong-bundle"


class NoUpdater(TsukuError):
    """A copy of this program that it cannot update itself."""

    slug = "no-updater"
    exit_code = 3


class DownloadError(TsukuError):
    """An artifact or metadata file that could not be downloaded."""

    slug = "download-failed"
    exit_code = 4


class HostUnreachable(DownloadError):
    """No connection: name resolution, refusal, timeout or no route."""

    slug = "host-unreachable"


UNAUTHORIZED = 401
"""The status of RFC 9110 for a request without credentials, or with wrong ones."""


class HttpStatusError(DownloadError):
    """An HTTP status other than the expected one; ``status`` has it, 0 if it is not known."""

    slug = "http-status"

    def __init__(
        self, message: str, *, status: int = 0, facts: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        super().__init__(message, facts=facts, hint=hint)
        self.status = status

    @property
    def is_absence(self) -> bool:
        """Whether the host says that it has no such file; S3 sends 403 for that."""
        return self.status in (403, 404, 410)

    @property
    def is_denial(self) -> bool:
        """Whether the host wants other credentials, or any."""
        return self.status == UNAUTHORIZED


class ProxyError(DownloadError):
    """A proxy setting that cannot be used, or a proxy that refused."""

    slug = "proxy"


class TlsError(DownloadError):
    """No trusted connection: certificate, host name or CA settings."""

    slug = "tls"


class BodyError(DownloadError):
    """A body that is too short, too long, or a web page instead of an archive."""

    slug = "bad-body"


class PackageIndexError(DownloadError):
    """A download that pip could not make through the configured package index."""

    slug = "package-index"


class TooLarge(DownloadError):
    """A download that is larger than the settings allow, or whose size is not known."""

    slug = "too-large"


class UpdaterFailed(DownloadError):
    """A tool that was to update this program, and did not."""

    slug = "updater-failed"


class TrustError(TsukuError):
    """Data that is not what was signed."""

    slug = "untrusted"
    exit_code = 5


class MetadataError(TrustError):
    """TUF metadata that failed a signature, threshold or rollback check."""

    slug = "bad-metadata"


class StaleMetadata(MetadataError):
    """Expired metadata where fresh metadata is required."""

    slug = "stale-metadata"


class ClockBehind(MetadataError):
    """A clock that is before the date of signatures: expiry cannot be decided."""

    slug = "clock-behind"


class Revoked(TrustError):
    """A release that its publisher has revoked."""

    slug = "revoked"


class ManifestError(TrustError):
    """A signed release file of a form that this version does not understand."""

    slug = "bad-manifest"


class DigestMismatch(TrustError):
    """Bytes whose SHA-256 or size differs from the signed one."""

    slug = "digest-mismatch"


class UnsafeArchive(TrustError):
    """An archive that is malformed, has entries that must not be written, or lacks the server."""

    slug = "unsafe-archive"


class TamperedInstall(TrustError):
    """An installed tree that differs from its receipt."""

    slug = "tampered-install"


class TamperedMirror(TrustError):
    """A mirror that differs from what was signed, or lacks a part of it."""

    slug = "tampered-mirror"


class BadBundle(TrustError):
    """A file that is no bundle, or is damaged, or was changed."""

    slug = "bad-bundle"


class StoreError(TsukuError):
    """A store on disk that could not be read or changed."""

    slug = "store"
    exit_code = 6


class LockTimeout(StoreError):
    """A lock that another process held until the timeout."""

    slug = "lock-timeout"


class NoSpace(StoreError):
    """A file system or quota that is full."""

    slug = "no-space"


class NotWritable(StoreError):
    """A folder that is read-only or belongs to another user."""

    slug = "not-writable"


class InUse(StoreError):
    """A version that cannot be removed because a running server uses it."""

    slug = "in-use"


class CorruptStore(StoreError):
    """State on disk that cannot be understood."""

    slug = "corrupt-store"


class UnsafeLocation(StoreError):
    """A place where another user could change the files to run."""

    slug = "unsafe-location"


class LaunchError(TsukuError):
    """A server that does not start."""

    slug = "launch-failed"
    exit_code = 7


class NotInstalled(LaunchError):
    """No installed version, or not the requested one."""

    slug = "not-installed"


class BackendFailed(LaunchError):
    """A server that does not start because of its GPU backend; another variant may start."""

    slug = "backend-failed"


class NoProgress(LaunchError):
    """A server that was given up while it loaded."""

    slug = "no-progress"


class GateFailed(LaunchError):
    """A staged server that does not run here, or does not offer its backend."""

    slug = "gate-failed"
    started = True
    """Whether the server was started at all; if not, this machine is not at fault."""
    deviation: float | None = None
    """How far its answers are from the right ones, as a part of 1; None without such a number."""

    @property
    def reason(self) -> str:
        """Why this build is passed over, in one line."""
        return self.message


class CannotCombine(GateFailed):
    """Two builds of one release that make no common tree."""

    slug = "cannot-combine"
    started = False

    @property
    def reason(self) -> str:
        """The conflict in one line, with the files: only their names tell what to do."""
        return ": ".join((self.message, "; ".join(self.facts))) if self.facts else self.message


class CompileFailed(SelectionError):
    """A build that this machine could not compile: a tool is missing, or the compiler failed."""

    slug = "compile-failed"


class BadModel(LaunchError):
    """A model that does not exist, may not be read, or is not a GGUF file."""

    slug = "bad-model"


class DoesNotFit(LaunchError):
    """A model that does not fit into the memory that is free, or of which that is not known."""

    slug = "does-not-fit"


class AlreadyRunning(LaunchError):
    """A background server that already has the name or the address."""

    slug = "already-running"


class NotRunning(LaunchError):
    """A name that no background server has."""

    slug = "not-running"


class StillRunning(LaunchError):
    """A background server that does not end, or that this user may not end."""

    slug = "still-running"


class SilentCpu(TsukuError):
    """A server that runs, but not on the requested GPU."""

    slug = "silent-cpu"
    exit_code = 8


class NotOnGpu(TsukuError):
    """A server of which too little is on the required GPU, or of which that cannot be shown."""

    slug = "not-on-gpu"
    exit_code = 8


class GpuLost(TsukuError):
    """A server that served has lost its GPU or hangs, and the settings do not let it go on."""

    slug = "gpu-lost"
    exit_code = 8


class UpdateRolledBack(TsukuError):
    """An unattended update whose build did worse than the one before: that one serves again."""

    slug = "update-rolled-back"
    exit_code = 9


class FleetFailed(TsukuError):
    """A run over many hosts in which one failed or was not reached; ``facts`` has each."""

    slug = "fleet-failed"
    exit_code = 10


class SystemLimitReached(TsukuError):
    """A process, thread, open file or piece of memory that the system does not allow."""

    slug = "system-limit"
    exit_code = 7


class Declined(TsukuError):
    """A question that the user answered with no; the command then ends well."""

    slug = "declined"
    exit_code = 0


class Interrupted(TsukuError):
    """A command that the user stopped."""

    slug = "interrupted"
    exit_code = 130


def revived(slug: str, message: str, facts: tuple[str, ...], hint: str) -> TsukuError:
    """Return an error that another process of ours reported, with the class of its slug."""
    kinds = [TsukuError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # A bug there has no class here.
    found = next((kind for kind in kinds if kind.slug == slug), LaunchError)
    return found(message, facts=facts, hint=hint)
