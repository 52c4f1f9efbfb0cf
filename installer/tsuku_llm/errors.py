"""Every error that the program raises on purpose, with its slug and exit code.

TsukuError
├── UsageError            2  bad-usage
│   ├── ConfigError       2  bad-config
│   └── SnapshotError     2  bad-snapshot
├── SelectionError        3  no-variant
│   └── UnknownRequest    3  unknown-request
├── DownloadError         4  download-failed
│   ├── HostUnreachable   4  host-unreachable
│   ├── HttpStatusError   4  http-status
│   ├── ProxyError        4  proxy
│   ├── TlsError          4  tls
│   ├── BodyError         4  bad-body         (short, over-long, or a web page)
│   └── PackageIndexError 4  package-index
├── TrustError            5  untrusted
│   ├── MetadataError     5  bad-metadata     (signature, rollback, threshold)
│   │   ├── StaleMetadata 5  stale-metadata   (expired)
│   │   └── ClockBehind   5  clock-behind
│   ├── Revoked           5  revoked
│   ├── ManifestError     5  bad-manifest
│   ├── DigestMismatch    5  digest-mismatch
│   ├── UnsafeArchive     5  unsafe-archive
│   └── TamperedInstall   5  tampered-install
├── StoreError            6  store
│   ├── LockTimeout       6  lock-timeout
│   ├── NoSpace           6  no-space
│   ├── NotWritable       6  not-writable
│   ├── InUse             6  in-use
│   ├── CorruptStore      6  corrupt-store
│   └── UnsafeLocation    6  unsafe-location
├── LaunchError           7  launch-failed
│   ├── NotInstalled      7  not-installed
│   ├── BackendFailed     7  backend-failed
│   ├── GateFailed        7  gate-failed
│   ├── BadModel          7  bad-model
│   ├── AlreadyRunning    7  already-running
│   ├── NotRunning        7  not-running
│   └── StillRunning      7  still-running
├── SilentCpu             8  silent-cpu
└── Interrupted         130  interrupted

The library says what happened; only ``cli`` prints and exits. Foreign exceptions are
wrapped in the module that owns the library, always with ``from``.
"""

from __future__ import annotations

from typing import ClassVar


class TsukuError(Exception):
    """What happened, the facts, and what to do about it.

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


class UsageError(TsukuError):
    """The request itself is wrong, whatever the machine."""

    slug = "bad-usage"
    exit_code = 2


class ConfigError(UsageError):
    """A setting is unreadable, malformed or has a value that does not exist."""

    slug = "bad-config"


class SnapshotError(UsageError):
    """A recorded machine cannot be read or written."""

    slug = "bad-snapshot"


class SelectionError(TsukuError):
    """No variant fits this machine, or none fits the request; ``facts`` has every reason."""

    slug = "no-variant"
    exit_code = 3


class UnknownRequest(SelectionError):
    """A backend, variant, release, channel or platform that does not exist."""

    slug = "unknown-request"


class DownloadError(TsukuError):
    """An artifact or metadata file could not be fetched."""

    slug = "download-failed"
    exit_code = 4


class HostUnreachable(DownloadError):
    """No connection: name resolution, refusal, time-out or no route."""

    slug = "host-unreachable"


class HttpStatusError(DownloadError):
    """The server answered with a status that is not the one asked for."""

    slug = "http-status"

    def __init__(
        self, message: str, *, status: int, facts: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        super().__init__(message, facts=facts, hint=hint)
        self.status = status


class ProxyError(DownloadError):
    """A proxy setting is unusable, or the proxy refused."""

    slug = "proxy"


class TlsError(DownloadError):
    """No trusted connection: certificate, host name, or CA settings."""

    slug = "tls"


class BodyError(DownloadError):
    """The body is short, over-long, or a page instead of an archive."""

    slug = "bad-body"


class PackageIndexError(DownloadError):
    """pip could not fetch the file through the configured package index."""

    slug = "package-index"


class TrustError(TsukuError):
    """Something is not what was signed."""

    slug = "untrusted"
    exit_code = 5


class MetadataError(TrustError):
    """TUF metadata failed a signature, threshold or rollback check."""

    slug = "bad-metadata"


class StaleMetadata(MetadataError):
    """Metadata that has expired where fresh metadata is needed."""

    slug = "stale-metadata"


class ClockBehind(MetadataError):
    """This machine's clock is before the date of signatures: nothing can be said of expiry."""

    slug = "clock-behind"


class Revoked(TrustError):
    """A release that its publisher has revoked."""

    slug = "revoked"


class ManifestError(TrustError):
    """A signed release file does not have the shape that this version understands."""

    slug = "bad-manifest"


class DigestMismatch(TrustError):
    """Bytes whose SHA-256 or size is not the signed one."""

    slug = "digest-mismatch"


class UnsafeArchive(TrustError):
    """An archive that is malformed, has what must not be written, or lacks the server."""

    slug = "unsafe-archive"


class TamperedInstall(TrustError):
    """An installed tree that is no longer what its receipt says."""

    slug = "tampered-install"


class StoreError(TsukuError):
    """The store on disk could not be read or changed."""

    slug = "store"
    exit_code = 6


class LockTimeout(StoreError):
    """Another process holds the lock."""

    slug = "lock-timeout"


class NoSpace(StoreError):
    """The file system or quota is full."""

    slug = "no-space"


class NotWritable(StoreError):
    """A folder is read-only or belongs to somebody else."""

    slug = "not-writable"


class InUse(StoreError):
    """A version that a running server uses is not removed."""

    slug = "in-use"


class CorruptStore(StoreError):
    """State on disk that cannot be understood."""

    slug = "corrupt-store"


class UnsafeLocation(StoreError):
    """Another user could change what would be run from there."""

    slug = "unsafe-location"


class LaunchError(TsukuError):
    """The server would not start."""

    slug = "launch-failed"
    exit_code = 7


class NotInstalled(LaunchError):
    """Nothing is installed, or not what was asked for."""

    slug = "not-installed"


class BackendFailed(LaunchError):
    """The server would not start because of its GPU backend: another variant may."""

    slug = "backend-failed"


class GateFailed(LaunchError):
    """A staged server does not run here, or does not offer its backend."""

    slug = "gate-failed"


class BadModel(LaunchError):
    """A model that is not there, may not be read, or is no GGUF file."""

    slug = "bad-model"


class AlreadyRunning(LaunchError):
    """A server in the background has the name, or the place to listen at."""

    slug = "already-running"


class NotRunning(LaunchError):
    """There is no server in the background of that name."""

    slug = "not-running"


class StillRunning(LaunchError):
    """A server in the background does not end, or may not be ended."""

    slug = "still-running"


class SilentCpu(TsukuError):
    """The server runs, but not on the requested GPU."""

    slug = "silent-cpu"
    exit_code = 8


class Interrupted(TsukuError):
    """Stopped by the user."""

    slug = "interrupted"
    exit_code = 130
