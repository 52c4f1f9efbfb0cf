"""What the files of a failed start are, by their first bytes.

Upstream's server loses the end of its log now and then, and says of every other file only that its
magic is wrong. What people give to ``-m`` by mistake is told by its beginning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.launch.failed.diagnosis import Diagnosis
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.model_header import CutOff, parts_of
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.wishes import downloads_in, last_value

_FIRST = 1024
"""Bytes from a file's beginning that tell what it is."""

_AGAIN = "download it again: this one is not complete"
_CONVERT = "llama.cpp needs a GGUF file: download one, or convert it with convert_hf_to_gguf.py"
_LINK = (
    "download the file itself: use the link of its download and not that of its page; a repository "
    "that asks for a login needs a token"
)
_BY_BEGINNING = (
    (rb"version https://git-lfs", "a pointer of Git LFS", "run in its folder: git lfs pull"),
    (rb"\s*(?i:<!doctype html|<html|<head|<\?xml)", "a web page", _LINK),
    # What web servers answer in place of a file: {"error": …}, "Entry not found".
    (rb'\s*\{\s*"|[A-Z][a-z]+ [ -~]{3,60}\s*\Z', "an answer of a web server in words", _LINK),
    (rb".{8}\{", "a safetensors file", _CONVERT),
    (rb"PK\x03\x04", "a zip archive, as are models of PyTorch", f"unpack it, or else: {_CONVERT}"),
    (rb"\x1f\x8b|7z\xbc\xaf|\xfd7zXZ|\(\xb5/\xfd", "a compressed file", "unpack it first"),
    # The formats before GGUF: ggml, ggmf, ggjt, and ggla for adapters.
    (rb"lmgg|fmgg|tjgg|algg", "in a format of llama.cpp from before August 2023", _CONVERT),
    (rb"\0{64}", "filled with zeros", _AGAIN),
)
_OTHER_THAN_A_MODEL = {
    "adapter": ("a LoRA adapter", "give the model with -m, and this file with --lora"),
    "mmproj": (
        "a projector for pictures or sound (mmproj)",
        "give the model with -m, and this file with --mmproj",
    ),
    "imatrix": ("an importance matrix for llama-quantize", "give the model with -m"),
}


def wrong_file(plan: LaunchPlan) -> Diagnosis | None:
    """Explain a failed start by a file of its arguments that is something else, or incomplete."""
    if downloads_in(plan.argv, plan.env):
        return None
    for option, name in _named(plan):
        path = os.path.join(plan.cwd, name)
        try:
            found = _other(path, option)
        except OSError:
            # A missing file, and one that may not be read, have their own diagnoses.
            continue
        if found:
            what, fix = found
            return Diagnosis(
                "not-a-model",
                f"the file given with {option} is {what}: {path}",
                fix,
                fault="model",
            )
    return None


def _named(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    """Yield the files that a server reads, each with its option; the model first."""
    options = memory_options(plan.argv, plan.env)
    lora = last_value(plan.argv, plan.env, ("--lora",))
    files = {
        "-m": options.model,
        "--mmproj": options.projector,
        "--model-draft": options.draft,
        "--lora": lora[1] if lora and "," not in lora[1] else None,
    }
    yield from ((option, path) for option, path in files.items() if path and "://" not in path)


def _other(path: str, option: str) -> tuple[str, str] | None:
    """Return what a file is, and what to do, if it is not what the option needs.

    Raises ``OSError``.
    """
    for part in parts_of(path):
        with open_foreign(part) as file:
            beginning, size = file.read(_FIRST), os.fstat(file.fileno()).st_size
        if found := by_beginning(beginning, size):
            return found
    try:
        header = read_header(path)
    except CutOff as error:
        return f"incomplete ({error})", _AGAIN
    except ValueError:
        return None
    if option not in ("-m", "--model-draft"):
        return None
    kind = "mmproj" if header.architecture == "clip" else header.values.get("general.type")
    if not header.tensors and kind not in _OTHER_THAN_A_MODEL:
        return "a model without weights", "take another file of it: this one is for the vocabulary"
    return _OTHER_THAN_A_MODEL.get(str(kind))


def by_beginning(beginning: bytes, size: int) -> tuple[str, str] | None:
    """Return what a file of ``size`` bytes is, and what to do; None for GGUF and the unknown."""
    if size == 0:
        return "empty", _AGAIN
    if beginning.startswith(b"GGUF"):
        return None
    if b"GGUF".startswith(beginning):
        return "incomplete", _AGAIN
    for pattern, what, fix in _BY_BEGINNING:
        if re.match(pattern, beginning, re.DOTALL):
            return what, fix
    return None
