"""The one narrow door to the machine: raw answers, no knowledge of what they mean.

Every answer is made of JSON values, so that ``snapshot`` can record and replay it.
What may crash or hang (a driver library) is loaded by ``ask`` in a short-lived child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tsuku_llm.child import ABSENT, Answer
from tsuku_llm.local import LocalHost, Program, Raw

__all__ = ["ABSENT", "Answer", "Answers", "Host", "LocalHost", "Program", "Raw"]

Answers = Callable[[], Mapping[str, Answer]]


class Host(Protocol):
    """A machine that can be asked. Nothing here raises: what cannot be had is None."""

    @property
    def name(self) -> str | None:
        """The name of the recording, None for the real machine."""

    def system(self) -> Mapping[str, Raw]:
        """What the interpreter knows: ``os``, ``machine``, ``release``, ``libc``, ``bits``.

        ``machine`` is the processor's, also for a process that the system emulates.
        """

    def read_text(self, path: str) -> str | None:
        """The first 64 KiB of a file, what is not UTF-8 replaced."""

    def list_dir(self, path: str) -> tuple[str, ...] | None:
        """The sorted names in a folder."""

    def access(self, path: str) -> str | None:
        """What this user may do with a file: some of "rw"; None if it is not there."""

    def environment(self, name: str) -> str | None:
        """One variable of this process's environment."""

    def ask(self, program: Program, questions: Sequence[str], limit: float) -> Answers:
        """Begin to put the questions to a child; the result waits for the answers.

        A question that breaks the child costs ``limit`` seconds at most.
        """
