"""Upstream's own tool for the memory of a model, where a build brings it: llama-fit-params.

The tool builds the model as its version would, without the weights, so it knows what the header
does not tell of an architecture. It does not know how llama-server shares its cache and how few
outputs it computes: these it gives for other programs. So its answer replaces a cache that is in
doubt, or that is far from ours. The weights are those of the header's table in any case: the tool
does not count those that the CPU's backend packs in another way.
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
"""The part of weights and cache by which both may differ."""

_HOST = "Host"
# As in this line, with the weights, the cache and the buffers: Vulkan0 15317 1024 124
_ROW = re.compile(r"(?P<name>\w+(?:\[[^\]\s]*\])?) \d{1,9} (?P<cache>\d{1,9}) \d{1,9}\s*")


def ask_fit_tool(
    build: Build, options: MemoryOptions, devices: Sequence[str], environ: Mapping[str, str]
) -> int | None:
    """Ask the tool for the bytes of the cache; ``build.server`` is its path.

    ``devices`` are those that the start uses, none for all. None without an answer that can be
    read.
    """
    # The user's settings for a server are in the options already.
    plan = plan_question(build, tool_arguments(options, devices), environ)
    try:
        answer = ask(plan, _LIMIT)
    except OSError:
        return None
    return parse_cache(answer.stdout) if answer.code == 0 else None


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
    words += ["-ncffn", str(options.dense_in_host)] if options.dense_in_host else []
    words += ["--device", ",".join(devices)] if devices else []
    return tuple(words)


def parse_cache(text: str) -> int | None:
    """Add up the cache in the tool's table; None without the row of main memory, its last one."""
    rows = [found for line in text.splitlines() if (found := _ROW.fullmatch(line))]
    if not any(row["name"] == _HOST for row in rows):
        return None
    # The table is in MiB.
    return sum(int(row["cache"]) << 20 for row in rows)


class CacheCorrection(NamedTuple):
    """What the tool's answer changes in the estimate of a cache.

    ``windowed`` is the part of the layers that keep only a window, if the header does not tell it.
    ``each`` are the bytes of each layer of an estimate that has no cache at all.
    """

    windowed: float = 0.0
    factor: float = 1.0
    each: int = 0

    def applied(self, need: MemoryNeed) -> MemoryNeed:
        """Return the corrected need, also of the same model with other options."""
        spare = need.spare or (0,) * len(need.cache)
        return need._replace(
            cache=tuple(
                int((most - self.windowed * less) * self.factor) + self.each
                for most, less in zip(need.cache, spare, strict=True)
            ),
            spare=(),
            # It says nothing of the buffers.
            doubt="most" if need.scores else "",
        )


def correction_of(need: MemoryNeed, told: int | None) -> CacheCorrection | None:
    """Compare our estimate with the tool's answer; None without an answer that helps."""
    cache = need.cache_size
    if told is None:
        return None
    if not cache:
        # It is in main memory (-nkvo), or nothing is known of it.
        each = told // max(1, len(need.layers))
        return CacheCorrection(each=each) if need.doubt == "least" else None
    if spare := sum(need.spare):
        return CacheCorrection(windowed=min(1.0, max(0.0, (cache - told) / spare)))
    far = abs(told - cache) > _FAR * (need.weights + cache)
    return CacheCorrection(factor=told / cache) if far else CacheCorrection()
