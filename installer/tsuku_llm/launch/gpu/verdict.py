"""The policy that turns signs into one of four verdicts on where a server computes. Pure.

| verdict | when |
|---|---|
| ``on_gpu`` | the GPU is shown, the CPU is not, and no sign says that layers are elsewhere |
| ``partly`` | the same, and a sign says that a part of the layers is not on the GPU |
| ``on_cpu`` | the CPU is shown, and the GPU is not |
| ``unknown`` | nothing is shown, or the signs contradict each other |

"Shown" means: by one proof, or, where no proof speaks, by indications of weight 2. A proof is
what the kernel or a driver counts, or a sentence of the server that leaves no other reading.

- A proof of one side beats the other side's indications.
- Proofs or indications on both sides give ``unknown``: one of them lies, and we cannot know which.
- A list of devices, open device nodes and mapped libraries show that a GPU could be used. They
  never count for ``on_gpu``.
- More evidence for the CPU never makes the verdict better; a property test checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tsuku_llm.launch.plan.report import Sign, Verdict

PROOF: Final = 100
"""The weight of a proof: more than all indications together."""

ENOUGH: Final = 2
"""The weight of indications that decide if there is no proof."""

AGAINST: Mapping[str, int] = {
    "arguments": PROOF,
    "plugin": PROOF,
    "process-memory": PROOF,
    "buffers": PROOF,
    "layers": PROOF,
    "software": PROOF,
    # The server's words about its backend, and the list from before the start: a later message
    # or another build of the same server may say otherwise.
    "complaint": ENOUGH,
    "device-list": ENOUGH,
    "device-nodes": ENOUGH,
    "loaded": 1,
    "engines": 1,
    "device-memory": 1,
}
"""The weight of each sign that says ``on_cpu``."""

IN_FAVOUR: Mapping[str, int] = {
    "process-memory": PROOF,
    "engines": PROOF,
    "buffers": PROOF,
    # Another program may have taken the memory in the same seconds.
    "device-memory": ENOUGH,
}
"""The weight of each sign that says ``on_gpu`` or ``partly``; any other sign counts 0 there."""


def decide(signs: Iterable[Sign]) -> Verdict:
    """Weigh the signs as the table above says, and return the verdict."""
    against = in_favour = 0
    whole = True
    for sign in signs:
        if sign.says is Verdict.ON_CPU:
            against += AGAINST.get(sign.name, 0)
        elif sign.says is not Verdict.UNKNOWN:
            in_favour += IN_FAVOUR.get(sign.name, 0)
            # Also a sign that shows no GPU by itself can show that a part is missing.
            whole = whole and sign.says is Verdict.ON_GPU
    # A proof of the other side silences mere indications, and nothing else does.
    cpu = against >= (PROOF if in_favour >= PROOF else ENOUGH)
    gpu = in_favour >= (PROOF if against >= PROOF else ENOUGH)
    if cpu and gpu:
        return Verdict.UNKNOWN
    if cpu:
        return Verdict.ON_CPU
    if gpu:
        return Verdict.ON_GPU if whole else Verdict.PARTLY
    return Verdict.UNKNOWN
