"""Upstream's own tool for the memory of a model, where a build brings it: llama-fit-params.

The tool builds the model as its version would, without the weights, so it also knows architectures
that we do not. It does not know how llama-server shares its cache and how few outputs it computes:
these it gives for other programs. So its answer replaces ours only where they are far apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tsuku_llm.launch.ask.child import ask
from tsuku_llm.launch.memory.memory_options import ALL, MemoryOptions
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.plan.planning import Build, plan_question

_LIMIT = 30.0
"""Seconds for an answer: the tool loads the drivers, and the model's header and vocabulary."""

_FAR = 0.1
"""The part of our estimate by which both may differ."""

_MIB = 1 << 20
_HOST = "Host"
# As in this line: Vulkan0 15317 1024 124
_ROW = re.compile(r"(?P<name>\w+(?:\[[^\]\s]*\])?) (\d{1,9}) (\d{1,9}) (\d{1,9})\s*")


class MemoryShare(NamedTuple):
    """What one device, or ``Host``, takes of a model, in bytes."""

    name: str
    weights: int
    cache: int
    compute: int


def ask_fit_tool(
    build: Build, options: MemoryOptions, devices: Sequence[str], environ: Mapping[str, str]
) -> tuple[MemoryShare, ...]:
    """Ask the tool; ``build.server`` is its path. Empty without an answer that can be read.

    ``devices`` are those that the start uses, none for all.
    """
    # The user's settings for a server are in the options already.
    plan = plan_question(build, tool_arguments(options, devices), environ)
    try:
        answer = ask(plan, _LIMIT)
    except OSError:
        return ()
    return parse_shares(answer.stdout) if answer.code == 0 else ()


def tool_arguments(options: MemoryOptions, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the tool's arguments for a start with these options."""
    words = ["--fit-print", "on", "-m", options.model or "", "-np", str(options.sequences)]
    words += ["-b", str(options.batch), "-ub", str(options.micro_batch)]
    words += ["-ctk", options.key_type, "-ctv", options.value_type]
    words += ["-c", str(options.context)] if options.context else []
    words += [] if options.flash_attention else ["-fa", "off"]
    words += ["--swa-full"] if options.full_windows else []
    words += ["-nkvo"] if options.cache_in_host else []
    if options.experts_in_host >= ALL:
        words += ["-cmoe"]
    elif options.experts_in_host:
        words += ["-ncmoe", str(options.experts_in_host)]
    words += ["--device", ",".join(devices)] if devices else []
    return tuple(words)


def parse_shares(text: str) -> tuple[MemoryShare, ...]:
    """Parse the tool's table, in MiB; empty without the row of main memory, its last one."""
    rows = [found for line in text.splitlines() if (found := _ROW.fullmatch(line))]
    shares = [MemoryShare(row["name"], *(int(row[at]) * _MIB for at in (2, 3, 4))) for row in rows]
    return tuple(shares) if any(share.name == _HOST for share in shares) else ()


class NeedCorrection(NamedTuple):
    """What the tool's answer changes in an estimate: two factors, and the bytes of each layer.

    ``each_cache`` is for an estimate that has no cache at all.
    """

    weights: float = 1.0
    cache: float = 1.0
    each_cache: int = 0

    def applied(self, need: MemoryNeed) -> MemoryNeed:
        """Return the corrected need, also of the same model with other options."""
        return need._replace(
            layers=tuple(int(size * self.weights) for size in need.layers),
            output=int(need.output * self.weights),
            other=int(need.other * self.weights),
            shared=int(need.shared * self.weights),
            cache=tuple(int(size * self.cache) + self.each_cache for size in need.cache),
        )


def correction_of(need: MemoryNeed, shares: Sequence[MemoryShare]) -> NeedCorrection:
    """Compare our estimate with the tool's answer; change nothing if they are near each other."""
    weights, cache = sum(need.layers) + need.output + need.other, sum(need.cache)
    if all(share.name == _HOST for share in shares):
        # Without a device there is no copy of the embeddings.
        weights -= need.shared
    told_weights = sum(share.weights for share in shares)
    told_cache = sum(share.cache for share in shares)
    if not shares or abs(told_weights + told_cache - weights - cache) <= _FAR * (weights + cache):
        return NeedCorrection()
    return NeedCorrection(
        told_weights / max(1, weights),
        told_cache / max(1, cache),
        0 if cache else told_cache // max(1, len(need.layers)),
    )
