"""A host that asks the drivers at once, while the rest of the program is still being imported.

Both take about the same time, so they run side by side.
"""

from __future__ import annotations

from tsuku_llm.local_host import LocalHost
from tsuku_llm.probe import LIMIT, program, questions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsuku_llm.driver_child import Asking
    from tsuku_llm.local_host import Program


class AskedHost(LocalHost):
    """This machine, with the questions of ``probe`` already put to a child process."""

    def __init__(self) -> None:
        super().__init__()
        self._questions = questions(self)
        # This starts the child and returns: it loads the drivers while we import.
        self._asking = super().ask(program(self), self._questions, LIMIT)
        self._taken = False

    def ask(self, program: Program, questions: Sequence[str], limit: float) -> Asking:
        """Answer as ``Host.ask``; the first matching call gets the answers asked for ahead."""
        # Answers are given once: a second probe wants the state of the machine at that moment.
        if self._taken or (questions, limit) != (self._questions, LIMIT):
            return super().ask(program, questions, limit)
        self._taken = True
        return self._asking

    def close(self) -> None:
        """End the child process, in case the answers were not needed."""
        self._asking.end()
