"""Ask the drivers before the rest of the program is loaded, which takes about as long."""

from __future__ import annotations

from tsuku_llm.local import LocalHost
from tsuku_llm.probe import LIMIT, program, questions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsuku_llm.child import Asking
    from tsuku_llm.local import Program


class AskedHost(LocalHost):
    """This machine, on which ``probe`` finds its questions already asked."""

    def __init__(self) -> None:
        super().__init__()
        self._questions = questions(self)
        self._asking = super().ask(program(self), self._questions, LIMIT)
        self._taken = False

    def ask(self, program: Program, questions: Sequence[str], limit: float) -> Asking:
        """See ``Host``; what was asked ahead answers the first time."""
        if self._taken or (questions, limit) != (self._questions, LIMIT):
            return super().ask(program, questions, limit)
        self._taken = True
        return self._asking

    def close(self) -> None:
        """End the child that asks for nobody."""
        self._asking.end()
