"""The settings of a run's downloads, and the HTTP client that they share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from tsuku_llm.fetch.http.limits import Limits, Timing
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.ground.errors import DownloadError, Interrupted
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    import httpx

    from tsuku_llm.fetch.http.registry_login import RegistryLogins


class Network:
    """Mirrors, limits and the client of one run; used in a ``with`` statement.

    ``offline`` refuses every request that would leave this machine. ``environ`` gives
    proxies and certificates (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``, ...).
    ``on_wait`` gets one line of text if a connection waits for some seconds: the reason, once
    for each reason, from any thread.

    Any thread may use the object. Leaving the ``with`` block stops the downloads that other
    threads still run with it.
    """

    def __init__(  # what one run of downloads is made with
        self,
        environ: Mapping[str, str],
        *,
        mirrors: tuple[str, ...] = (),
        limits: Limits | None = None,
        timing: Timing | None = None,
        offline: bool = False,
        on_wait: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.environ = environ
        self.mirrors = mirrors
        self.limits = limits or Limits()
        self.timing = timing or Timing()
        self.clock = self.timing.clock
        """The time in seconds, of a clock that only goes forward."""
        self._offline = offline
        self._on_wait = on_wait
        self._stopped = threading.Event()  # set once, and never cleared
        self._users = 0
        # Guards `_users` and `_client`, which all downloading threads change.
        self._changed = threading.Condition()
        self._client: httpx.Client | None = None
        # The repositories in registries that this run uses, by ``RegistryPlace.api``; each is
        # added before the first request to it.
        self.registries: tuple[str, ...] = ()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        with self._changed:
            # Closing a client under a thread that still reads from it would hide its real error.
            # Each download ends at its next check(): reads do one twice a second, a TLS handshake
            # or a write only after its timeout. used() refuses new downloads.
            self._changed.wait_for(lambda: not self._users)
            if self._client is not None:
                with contextlib.suppress(OSError):  # all downloads are over: nothing can be lost
                    self._client.close()
                self._client = None

    def stop(self) -> None:
        """Stop the downloads of other threads, as leaving the block does; do not wait."""
        self._stopped.set()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the client open for one download."""
        self.check()
        # stop() may come just here. The download then ends at its next check().
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()  # __exit__ may wait for the last one

    @property
    def client(self) -> httpx.Client:
        """The run's only client: making one costs 30 ms, for its certificates."""
        from tsuku_llm.fetch.http.transport import make_client

        with self._changed:  # of threads that begin at once, one makes the client for all
            if self._client is None:
                self._client = make_client(self.environ, self.limits, self.timing, self._on_wait)
            return self._client

    @cached_property
    def logins(self) -> RegistryLogins:
        """The logins to registries in this run; few runs need any."""
        from tsuku_llm.fetch.http.registry_login import RegistryLogins

        return RegistryLogins(self.environ)

    def use_registry(self, api: str) -> None:
        """Let requests below this URL log in to their registry."""
        with self._changed:  # the tuple is replaced, never changed: readers need no lock
            if api not in self.registries:
                self.registries = (*self.registries, api)

    def check(self) -> None:
        """Raise ``Interrupted`` if the network is stopped. Called by any thread, often."""
        if self._stopped.is_set():
            raise Interrupted("the download was stopped", hint="run the command again to resume it")

    def require_online(self, url: str) -> None:
        """Raise ``DownloadError`` if this run is offline."""
        if self._offline:
            raise DownloadError(
                "a file is not on this machine, and --offline forbids a download",
                facts=(f"url: {shown(url)}",),
                hint="leave out --offline, or name a folder that has it: "
                f"{TSUKU} config set llm.mirror file:///FOLDER",
            )

    def pause(self, seconds: float) -> None:
        """Wait; raise ``Interrupted`` if the network is stopped meanwhile."""
        if self.timing.sleep:
            self.timing.sleep(seconds)
        else:
            self._stopped.wait(seconds)  # not time.sleep: stop() in another thread ends this
        self.check()
