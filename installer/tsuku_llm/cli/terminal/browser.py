"""The user's web browser."""

from __future__ import annotations

import os
import subprocess
import sys

from tsuku_llm.ground.processes import children

_OPEN = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"

_LIMIT = 10.0
"""Seconds for a browser to take the page; one that runs for longer shows it by itself."""


def open_page(url: str) -> bool:
    """Open a URL in the user's browser; return False if there is none that can be opened.

    This happens in a child process of its own session: Ctrl-C does not end the browser with us,
    and the browser cannot read from our terminal.
    """
    # Without TERM, Python finds no browsers for a terminal: the server's log is there.
    environ = {name: value for name, value in os.environ.items() if name != "TERM"}
    try:
        child = children.start(
            # -I: the user's folder and variables must not choose the modules.
            [sys.executable, "-I", "-c", _OPEN, url],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        return child.wait(_LIMIT) == 0
    except subprocess.TimeoutExpired:
        child.returncode = 0  # else Popen warns when it is deleted: the browser lives on
        return True


def why_none() -> str:
    """Return why no browser can be opened, as far as it is known."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform in ("win32", "darwin") or any(map(os.environ.get, displays)):
        return "no browser could be opened"
    return "no browser can be opened: this session has no display"
