"""The canary in the life of a server: its answers are read, and compared with the first one.

Only the monitor's thread uses it. It asks little: a server that nobody has used since the last
answer is not asked, and no text of a client gives way. So it asks only in a slot that has none.
"""

from __future__ import annotations

from collections.abc import Callable

from tsuku_llm.launch.ask.canary import SMALL, Slot, ask_canary, slots_of
from tsuku_llm.launch.compute.canary_answer import (
    OTHER,
    SAME,
    Answer,
    KnownAnswers,
    what_is_wrong,
)
from tsuku_llm.launch.gpu.life import FAULT, UNREAD, ServerProblem
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import CanaryResult
from tsuku_llm.launch.plan.wishes import Wishes

_PATIENCE = 4
"""Looks without a free slot after which the user is told; a look comes every 15 seconds."""

_CROWDED = "the server's answers are not checked now: each of its slots has a client's text"
_CHANGED = "this build answers otherwise than an earlier one"


class AnswerWatch:
    """The reader of one server's answers; ``keep`` gets the first one, if it may be right.

    ``on_wait`` is called once a second of a request; an OSError of it ends the request.
    """

    def __init__(
        self,
        address: ServerAddress,
        wishes: Wishes,
        known: KnownAnswers,
        keep: Callable[[Answer], None],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._wishes = wishes
        self._known = known
        self._keep = keep
        self._on_wait = on_wait
        # What this server answers while it is right; before, what an earlier one answered.
        self._right: Answer = ()
        self._has_answered = False
        # Each slot's last task when the last answer was read.
        self._tasks: dict[int, int | None] = {}
        self._own_slot: int | None = None
        self._crowded = 0
        self.told: ServerProblem | None = None
        """What else the last look found."""
        # A router starts a server for each model, and a server that sleeps would wake up.
        self._asks = wishes.names_model and not wishes.sleeps and not address.tls

    def first(self, result: CanaryResult) -> str | None:
        """Read an answer to which there is none before; return what is wrong with it, or "".

        None if there is nothing to read. It is not kept if clients were served meanwhile.
        """
        if not result.answer:
            return None
        if self._is_beside((), None):
            return what_is_wrong(result.answer)
        wrong = what_is_wrong(result.answer, self._known.own, OTHER)
        if wrong:
            return wrong
        self._right, self._has_answered = result.answer, True
        if not self._known.own:
            self._keep(result.answer)
            other = what_is_wrong(result.answer, self._known.other, OTHER)
            if other:
                # Which of the two is right is not known: upstream may have mended something.
                facts = (f"{self._known.build}: {other}",)
                self.told = ServerProblem(FAULT, _CHANGED, facts, ends=False)
        return ""

    def look(self) -> str | None:
        """Ask if it is due and costs no client anything; return as ``first``.

        A wrong answer counts if the next one is wrong as well.
        """
        self.told = None
        slots = slots_of(self._address, self._wishes) if self._asks else ()
        if not slots or not self._is_due(slots):
            self._crowded = 0
            return None
        slot = self._free(slots)
        if slot is None:
            self._crowded += 1
            if self._crowded == _PATIENCE:
                self.told = ServerProblem(UNREAD, _CROWDED, ends=False)
            return None
        self._crowded = 0
        wrong = self._asked(slot, slots)
        if wrong:
            wrong = self._asked(slot, slots)
        if wrong is not None:
            # What clients asked meanwhile is looked at next time, too: their slots are as before.
            self._tasks = {each.number: each.task for each in slots}
            after = slots_of(self._address, self._wishes)
            self._tasks |= {each.number: each.task for each in after if each.number == slot}
            self._own_slot = slot
        return wrong

    def _is_due(self, slots: tuple[Slot, ...]) -> bool:
        if not self._has_answered and not self._tasks:
            return not any(each.busy for each in slots)
        return any(each.task != self._tasks.get(each.number) for each in slots)

    def _free(self, slots: tuple[Slot, ...]) -> int | None:
        free = [each.number for each in slots if not each.busy and each.tokens <= SMALL]
        # Its own again, so that it takes one slot only. Clients begin with the first ones.
        return self._own_slot if self._own_slot in free else max(free, default=None)

    def _asked(self, slot: int, before: tuple[Slot, ...]) -> str | None:
        result = ask_canary(self._address, self._wishes, slot, on_wait=self._on_wait)
        if not result.answer:
            return None
        if not self._has_answered:
            return self.first(result)
        wrong = what_is_wrong(result.answer, self._right, SAME)
        # Upstream mixes up recurrent layers' states of requests that share a batch (llama.cpp issue
        # 29002). So beside clients, another answer than before says nothing: later, again.
        if wrong and not what_is_wrong(result.answer) and self._is_beside(before, slot):
            return None
        return wrong

    def _is_beside(self, before: tuple[Slot, ...], own: int | None) -> bool:
        """Tell whether a client was served in a slot that is not our own since ``before``."""
        tasks = {each.number: each.task for each in before}
        return any(
            each.busy or each.task != tasks.get(each.number, each.task)
            for each in slots_of(self._address, self._wishes)
            if each.number != own
        )
