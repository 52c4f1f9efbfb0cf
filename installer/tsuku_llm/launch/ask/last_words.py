"""The last words of a server: the lines of its output that can explain its end.

Most of an output cannot explain anything. This module leaves out what the server recovered from,
what it printed of the model, and the frames of a backtrace. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LONGEST_LINE = 1000
"""Characters of a line that are read: some patterns' time grows faster than the square."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# The words of backtrace(3), gdb, lldb and macOS. Thousands of frames may follow a cause, and the
# names of functions in them look like causes.
_FRAME = re.compile(
    r"\s*#\d+\s|\s*(?:\* )?frame #\d+|\s*\* ?thread #\d+|0x[0-9a-f]{6,} in |\s+at /"
    r"|\[(?:New LWP|Inferior \d|Thread debugging|Current thread)|\s*\d+ +\S+ +0x[0-9a-f]{8,} "
    r"|\S*\([^()\s]*\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]\s*$"
    r"|Using host libthread_db|This GDB supports|Debuginfod has been|To make this setting permanent"
    r"|(?:warning: )?\d+\t"
)

# What the loader prints of a model: its keys, its vocabulary, its chat template.
_OF_THE_MODEL = re.compile(
    r"llama_model_loader: - |print_info: |llm_load_print_meta: |(?:llm_load_vocab|load): +"
    r"(?:control|special|printing|- )|init_tokenizer: "
)
# A chat template may have several lines. It ends where a line looks like one of the log.
_TEMPLATE = re.compile(r"chat template, (?:chat_template: |example_format: '|built_in: )")
_OF_THE_LOG = re.compile(
    r"\d+\.\d+\.\d+\.\d+ [A-Z] |(?:ggml|gguf|llama|common|clip|mtmd|alloc)_\w+: "
    r"|(?:main|init|load|load_\w+|error|warning|start|operator\(\)): "
    r"|(?:srv|slot|que|main|cmn|res|spec) {2,}\S+ |terminate called|  what\(\): "
    r"|\S+\.(?:c|cc|cpp|cu|cuh|h|hpp|m):\d+: "
)

# Complaints after which the server goes on: it tries another way, or does without.
_HARMLESS = re.compile(
    r"pinned memory|failed to m?lock|RLIMIT_MEMLOCK|defaulting to chatml|LD_PRELOAD cannot be pre"
    r"|Template application failed|failed to parse tool use chat template"
    r"|template not supported, falling back|fit params to free device memory"
    r"|failed to measure \w+ model memory|failed to get memory usage|_get_memory_usage: "
    r"|tokens will be translated|CORS is set to allow all origins",
    re.IGNORECASE,
)
# The server went on after all that was said until here: another try, a model that is being read,
# a backend that was given up, or the end of the start.
_WENT_ON = re.compile(
    r"retrying without pipeline parallelism|llama_model_loader: loaded meta data"
    r"|load_tensors: loading model tensors|\bmodel loaded\s*$|listening on |server is listening"
    r"|falling back to|using CPU backend instead",
    re.IGNORECASE,
)

_COMPLAINT = re.compile(
    # The first pattern is upstream's mark of an error line (b10068 and later). A server that ends
    # may print the mark and lose the words after it.
    r"^[\d.]+ E +\S|error|fail|invalid|unknown|unsupported|illegal|incompatible|insufficient"
    r"|unavailable|needs|exception|terminat|abort|assert|unable|can ?not|can't|couldn't|could not"
    r"|does ?n[o']t"
    r"|\bnot?\b|missing|corrupt|mismatch|wrong|exceed|expect|denied|without|disallowed|removed"
    r"|too (?:many|old|new|short|long|large|small)|larger than|newer than|lower than|past end"
    r"|\bbad[_ ]|lost|fault|require|must be|what\(\)|Referenced from|\bis (?:a stub|version)"
    r"|duplicate|out of|out_of|outof|ECC|unreachable|refused|timeout|timed out|unspecified",
    re.IGNORECASE,
)


def complaints(text: str) -> list[str]:
    """Return the lines that may say why the server ended, in the order of time.

    Left out is everything before the last sign that the server went on.
    """
    found: list[str] = []
    for line in own_words(text.split("\n")):
        if _WENT_ON.search(line):
            found.clear()
        else:
            found.append(line)
    return found


def last_lines(text: str, most: int = 6) -> tuple[str, ...]:
    """Return the last lines that mean something, for an end whose cause is not known."""
    lines = [line.strip() for line in _without_foreign(text.split("\n"))]
    return tuple(line[:_QUOTED] for line in lines if line)[-most:]


_QUOTED = 300
"""Characters of a line that is quoted."""


def quoted(line: str) -> str:
    """Shorten a line for a fact."""
    return line.strip()[:_QUOTED]


def own_words(lines: Iterable[str]) -> Iterator[str]:
    """Yield the complaints among ``lines``, and the signs that the server went on."""
    for line in _without_foreign(lines):
        if _WENT_ON.search(line) or (_COMPLAINT.search(line) and not _HARMLESS.search(line)):
            yield line


def _without_foreign(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in the server's own words: no frames, and nothing from the model's file."""
    in_template = False
    for raw in lines:
        line = _COLOUR.sub("", raw[:_LONGEST_LINE]).rstrip("\r")
        if _TEMPLATE.search(line):
            in_template = True
            continue
        if in_template and not _OF_THE_LOG.match(line):
            continue
        in_template = False
        if not (_FRAME.match(line) or _OF_THE_MODEL.search(line)):
            yield line
