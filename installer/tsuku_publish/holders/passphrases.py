"""The passphrases and PINs of signers: from the environment, from a file, or from a person.

None of them ever goes into a message. ``Passphrases.hidden`` takes them out of what a library says.
"""

import os
import shlex
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from tsuku_llm.ground.foreign import open_foreign, read_answer
from tsuku_publish.errors import PublishError

VARIABLE = "TSUKU_LLM_PASSPHRASE"
FILE_VARIABLE = "TSUKU_LLM_PASSPHRASE_FILE"
_JOBS = f"{FILE_VARIABLE} names the file that has it, or the folder with one file for each signer"

SHORTEST = 8
"""The fewest characters of a new passphrase."""

Ask = Callable[[str], str | None]
"""Shows a question and returns the hidden answer; None if nobody can be asked."""


def nobody(_question: str) -> None:
    """Ask nobody: the answer of a job, which has no terminal."""


class Passphrases:
    """What opens the signers of one run; each is looked for once, and only if it is needed."""

    def __init__(self, environ: Mapping[str, str], ask: Ask = nobody) -> None:
        self._environ = environ
        self._ask = ask
        self._known: dict[str, str] = {}

    def of(self, name: str, kind: str = "passphrase") -> str:
        """Return what opens a signer; ``kind`` is the word for it. Raises ``PublishError``."""
        if name not in self._known:
            found = self.given(name)
            if found is None:
                found = self._ask(f"{kind} of {name}")
            if found is None:
                raise PublishError(f"no terminal to ask for the {kind} of {name}: {_JOBS}")
            self._known[name] = found
        return self._known[name]

    def given(self, name: str) -> str | None:
        """Return what the environment gives for a signer, None for nothing.

        Raises ``PublishError`` for a file that cannot be read or that others can open.
        """
        path = self._environ.get(FILE_VARIABLE)
        if path:
            # systemd's LoadCredential= gives such a folder, with one file for each name.
            place = Path(path, name) if Path(path).is_dir() else Path(path)
            # An editor ends the file with a line feed, which belongs to no passphrase.
            return read_closed(place, FILE_VARIABLE).rstrip("\r\n")
        return self._environ.get(VARIABLE)

    def new(self, name: str) -> str:
        """Return the passphrase for a new signer; a person is asked twice.

        Raises ``PublishError`` if the answers differ, and if nothing gives a passphrase: a key
        without one is made only on purpose.
        """
        found = self.given(name)
        if found is None:
            found = self._ask(f"new passphrase of {name}")
            if found is not None and self._ask(f"again, the passphrase of {name}") != found:
                raise PublishError(f"these are two different passphrases: {name} is not made")
        if found is None:
            raise PublishError(
                f"no terminal to ask for a new passphrase of {name}, which is not made",
                facts=(_JOBS,),
                hint="or make a key that everybody who gets its file can use: --unencrypted",
            )
        if len(found) < SHORTEST:
            raise PublishError(
                f"a passphrase has at least {SHORTEST} characters; {name} is not made"
            )
        return found

    def hidden(self, text: str) -> str:
        """Return a text without the passphrases that were used, in one line."""
        for secret in filter(None, self._known.values()):
            text = text.replace(secret, "…")
        return " ".join(text.split())[:300]


def read_closed(path: Path, variable: str, *, closed: bool = True) -> str:
    """Return the text of a file with secrets that ``variable`` has led to.

    Raises ``PublishError``, also for a file that other users can read or write: they may know its
    content. ``closed`` False reads such a file all the same.
    """
    try:
        with open_foreign(path) as file:
            if closed:
                _require_closed(path, variable, os.fstat(file.fileno()))
            return read_answer(file).decode()
    except OSError as error:
        raise PublishError(f"{variable}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # The error has the bytes that were read.
        raise PublishError(f"{variable}: {path} is no text") from None


def write_closed(path: Path, text: str) -> None:
    """Make a file that only its owner can read. Raises ``PublishError``, also if it exists."""
    try:
        # Make the file with its final mode: other users can never open it, not even while it is
        # empty.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise PublishError(f"{path} cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        # Half a key is of no use, and a second try would find that the file exists.
        path.unlink()
        raise PublishError(f"{path} cannot be written: {error.strerror}") from error


def _require_closed(path: Path, variable: str, status: os.stat_result) -> None:
    """Refuse a file that users other than its owner can open, or that another user owns."""
    if os.name != "posix":  # Windows has no such modes
        return
    if status.st_uid not in (0, os.geteuid()):
        raise PublishError(f"{variable}: {path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise PublishError(
            f"{variable}: other users can open {path} (mode {mode}): "
            f"run chmod 600 {shlex.quote(str(path))}, and replace what it holds if anybody did"
        )
