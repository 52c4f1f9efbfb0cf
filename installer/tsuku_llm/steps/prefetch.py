"""The questions to the drivers, asked while the rest of the program is still being imported.

Both take about the same time, so they run side by side. The operation of the command ``probe`` is
here as well, because it needs no manifest and no catalog either.
"""

from __future__ import annotations

from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.probe import probe, program, questions

# As in ``local_host`` and ``probe``: no import but those that the child needs to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tsuku_llm.ground.processes.driver_child import Asking, Tell
    from tsuku_llm.machine.hardware import Hardware
    from tsuku_llm.machine.host import Host
    from tsuku_llm.machine.local_host import ChildProgram


class PrefetchedHost(LocalHost):
    """This machine, with the questions of ``probe`` already put to a child process.

    ``limit`` is in seconds, for each driver.
    """

    def __init__(self, limit: float, tell: Tell | None = None) -> None:
        super().__init__(tell=tell)
        self._questions = questions(self)
        self._limit = limit
        # This starts the child and returns: it loads the drivers while we import.
        self._asking = super().ask(program(self), self._questions, limit)
        self._taken = False

    def ask(self, program: ChildProgram, questions: Sequence[str], limit: float) -> Asking:
        """Answer as ``Host.ask``; the first matching call gets the prefetched answers."""
        # Answers are given once: a second probe wants the state of the machine at that moment.
        if self._taken or (questions, limit) != (self._questions, self._limit):
            return super().ask(program, questions, limit)
        self._taken = True
        return self._asking

    def close(self) -> None:
        """End the child process, in case the answers were not needed."""
        self._asking.end()


def probe_machine(host: Host, limit: int, *, record: Path | None = None) -> Hardware:
    """Return what the machine has; with ``record`` also write the raw answers to that file.

    A driver may take ``limit`` seconds to answer.
    """
    if record is None:
        return probe(host, limit)
    from tsuku_llm.machine.snapshot import RecordingHost  # noqa: PLC0415 - few runs record

    recorder = RecordingHost(host)
    hardware = probe(recorder, limit)
    recorder.save(record)
    return hardware
