"""A real browser without a screen: Chromium, driven through its DevTools pipe."""

import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.tools import require_tool

LIMIT = 600.0
"""Seconds for a condition in a page; a busy machine is slow, and only a broken page takes all."""

_SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --remote-debugging-pipe "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-dev-shm-usage --no-proxy-server"
)


class Page:
    """One tab, which goes to URLs, runs scripts and types."""

    def __init__(self, commands: int, answers: io.BufferedReader) -> None:
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def send(self, method: str, **parameters: object) -> Any:
        """Send a command, and return its result; events are dropped."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                data = self._answers.read1(1 << 16)
                assert data, "the browser has ended"
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def go(self, url: str) -> None:
        """Load a URL."""
        assert "errorText" not in self.send("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    def until(self, script: str, reactions: Mapping[str, Callable[[], None]] | None = None) -> Any:
        """Return the first true value of an expression in the page.

        A value that has a reaction is not returned: the reaction is called, then it is asked again.
        """
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            value = self.evaluate(script)
            if reaction := (reactions or {}).get(value):
                reaction()
            elif value:
                return value
            # The page's own clock paces the questions.
            wait = "new Promise(done => setTimeout(done, 200))"
            self.send("Runtime.evaluate", expression=wait, awaitPromise=True)
        shown = self.evaluate("document.body.innerText")
        raise AssertionError(f"{script} did not come true: {shown}")

    def type(self, text: str) -> None:
        """Type a text where the cursor is."""
        self.send("Input.insertText", text=text)

    def press_enter(self) -> None:
        """Press Enter."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.send("Input.dispatchKeyEvent", type="keyDown", **key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **key)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start Chromium with a profile folder of its own."""
    program = require_tool("chromium")
    for_browser, commands = os.pipe()
    answers, from_browser = os.pipe()

    def as_3_and_4() -> None:
        # The pipe's ends have these numbers for Chromium; keep one that has the other's number.
        read, write = os.dup(for_browser), os.dup(from_browser)
        while read <= 4 or write <= 4:
            read, write = os.dup(read), os.dup(write)
        os.dup2(read, 3)
        os.dup2(write, 4)

    with (profile.parent / "chromium.log").open("wb") as log:
        child = subprocess.Popen(
            [program, *_SWITCHES.split(), f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=as_3_and_4,  # noqa: PLW1509 - no other thread is there
        )
    os.close(for_browser)
    os.close(from_browser)
    reader = os.fdopen(answers, "rb")
    try:
        yield Page(commands, reader)
    finally:
        reader.close()
        with suppress(OSError):
            os.close(commands)  # Chromium ends when its pipe is closed
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
