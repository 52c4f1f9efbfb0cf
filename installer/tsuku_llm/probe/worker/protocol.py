"""The child's side of the pipe, and calls that are announced before they are made."""

from __future__ import annotations

import ctypes
import os
import sys

from . import search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


class Channel:
    """The writer of one question's answers, as JSON lines: ``ground.processes.driver_child``."""

    def __init__(self, pipe: int, question: str | None, root: str = "") -> None:
        self._pipe = pipe
        self._question = question
        self._root = root

    def before(self, call: str) -> None:
        """Announce a call, so that the parent can name it if it never returns."""
        self._write({"before": call})

    def answer(self, call: str, **values: Any) -> None:
        """Report a call's result: its return code as ``code``, and the values that it filled in."""
        self._write({"call": call, **values})

    def end(self) -> None:
        """Report that the question is answered."""
        self._write({"end": "done"})

    def greet(self, **lacking: str) -> None:
        """Report that the child runs, before it has loaded any foreign code.

        With ``lacking`` it cannot ask, for want of what the system does not allow.
        """
        self._write(lacking)

    def call(
        self,
        library: ctypes.CDLL,
        name: str,
        *arguments: Any,
        tell: Callable[[], dict[str, Any]] | None = None,
    ) -> int | None:
        """Call a function that returns a code; return 0 for success, None if the library lacks it.

        ``tell`` gives the values that the function filled in; it is called after a success only.
        """
        function = getattr(library, name, None)
        if function is None:
            self.answer(name, error="the library has no such function")
            return None
        self.before(name)
        code = int(function(*arguments))
        self.answer(name, code=code, **(tell() if tell and code == 0 else {}))
        return code

    def open(self, names: Sequence[str]) -> ctypes.CDLL | None:
        """Load the first of these libraries that loads, from where a server would find it."""
        errors = []
        for name in names:
            self.before(f"open {name}")
            library, told = _load(self._root, name)
            if library is not None:
                self.answer("open", library=told, name=name)
                return library
            errors.append(told)
        self.answer("open", library=None, names=list(names), errors=errors)
        return None

    def _write(self, message: Mapping[str, Any]) -> None:
        line = encode({"ask": self._question, **message}).encode("ascii") + b"\n"
        try:
            while line:
                # A write to a pipe may be partial.
                line = line[os.write(self._pipe, line) :]
        except OSError:  # the parent has closed the pipe: no one reads the answers
            os._exit(0)


def encode(value: Any) -> str:
    """Write JSON for the types of which answers are made: texts, whole numbers, lists, tables.

    ``json`` would take too long to import.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(encode, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode(str(k))}:{encode(v)}" for k, v in value.items()) + "}"
    return f'"{"".join(map(_escape, str(value)))}"'


def _escape(letter: str) -> str:
    if " " <= letter <= "~" and letter not in '"\\':
        return letter
    raw = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def loaded_path(name: str) -> str:
    """Return the file that a library was loaded from, on Linux; elsewhere return its name."""
    stem = os.path.basename(name).split(".so")[0]
    if sys.platform != "linux":
        return name
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")
                if os.path.basename(path[2]).startswith(stem + ".so"):
                    return "/" + path[2]
    except OSError:
        pass
    return name


def _load(root: str, name: str) -> tuple[ctypes.CDLL | None, str]:
    """Load a library as a server would; return it with its file, or None with the error.

    This interpreter may have libraries that no server finds (conda), or its own loader, which does
    not read the system's cache (Nix, Guix, Homebrew).
    """
    try:
        library, path = ctypes.CDLL(name), loaded_path(name)
        if sys.base_prefix == "/usr" or not path.startswith(sys.base_prefix + "/"):
            return library, path
        error = f"{path} is this Python's own: no server finds it"
    except OSError as failed:
        error = str(failed)
        if not error.startswith(f"{name}: cannot open shared object file"):
            return None, error
    found = search.find(root, name) if sys.platform == "linux" else None
    if found is None:
        return None, error
    path = root + found[0]
    try:
        return ctypes.CDLL(path), os.path.realpath(path)
    except OSError as failed:
        return None, str(failed)


def text(raw: bytes) -> str:
    """Decode a name that a driver filled in; drivers do not promise UTF-8."""
    return raw.decode("utf-8", "replace")
