"""The one narrow door to the machine: raw answers, without their meaning.

Every answer is made of JSON values, so that ``snapshot`` can record and replay it. ``ask`` loads a
driver library, which may crash or hang, in a short-lived child process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tsuku_llm.ground.processes.driver_child import ABSENT, DriverAnswer
from tsuku_llm.machine.local_host import ChildProgram, LocalHost, Raw

__all__ = ["ABSENT", "Answers", "ChildProgram", "DriverAnswer", "Host", "LocalHost", "Raw"]

Answers = Callable[[], Mapping[str, DriverAnswer]]


class Host(Protocol):
    """A machine that can be asked. No method raises: None means that there is no answer."""

    @property
    def name(self) -> str | None:
        """The name of the recording, None for the real machine."""

    def system(self) -> Mapping[str, Raw]:
        """Return the interpreter's facts: ``os``, ``machine``, ``release``, ``libc``, ``bits``.

        ``machine`` is the processor's, also for a process that the system emulates.
        """

    def read_text(self, path: str) -> str | None:
        """Return the first 64 KiB of a file, with bytes that are not UTF-8 replaced."""

    def list_dir(self, path: str) -> tuple[str, ...] | None:
        """Return the sorted names in a folder."""

    def access(self, path: str) -> str | None:
        """Return this user's rights on a file, some of "rw"; None if the file does not exist.

        A device node is opened. If that fails, a space and the name of the error follow: "rw EPERM"
        has rights by owner, group and mode, and something else refuses it; "rw EACCES" is also a
        file that its folder lists and whose status is refused. "nodev" is the error of a file
        system that was mounted so.
        """

    def lacks(self, path: str) -> bool:
        """Tell whether a file is known not to exist; a recording may not have been asked."""

    def environment(self, name: str) -> str | None:
        """Return one variable of this process's environment."""

    def ask(self, program: ChildProgram, questions: Sequence[str], limit: float) -> Answers:
        """Start asking the questions; calling the result waits for the answers.

        A question that breaks the child costs at most ``limit`` seconds.
        """
