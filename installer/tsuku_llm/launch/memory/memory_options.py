"""The server's arguments and variables that decide how much memory it takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from tsuku_llm.launch.plan.wishes import flagged, last_value, spelled

_SLOTS = 4
"""Sequences of a server that was told no number of them; they share one cache."""

ALL = 1 << 16
"""More layers than any model has."""

ROOM = 1 << 30
"""Bytes that stay free on each device: the default of upstream's ``--fit-target``."""


class MemoryOptions(NamedTuple):
    """The options of one start, with upstream's defaults.

    ``context`` is in tokens, 0 for the model's own. ``sequences`` is how many the server computes
    at a time; they share one cache if ``unified``. ``micro_batch`` is the tokens of one step.
    ``key_type`` and ``value_type`` are those of the cache. ``experts_in_host`` is of how many
    layers the experts stay in main memory, ``dense_in_host`` of how many the dense feed-forward
    weights. ``overrides`` are patterns of tensors'
    names, each with whether these tensors stay in main memory; the first that matches counts.
    ``nextn``: the layers that guess the next
    tokens are loaded.
    ``shortest`` is the least context to which the server shortens one, None for no shortening.
    With ``fits_itself`` the server shortens a context that nobody asked for, and moves layers.
    ``margins`` are the bytes that stay free on each device, in the order of devices; ``margin``
    reads them. ``model``, ``projector`` and ``draft`` are paths or URLs, None: not given.
    ``projector_device`` and ``draft_device`` are where these are: "" for the main one, "none" for
    main memory.
    """

    context: int = 0
    sequences: int = _SLOTS
    unified: bool = True
    batch: int = 2048
    micro_batch: int = 512
    key_type: str = "f16"
    value_type: str = "f16"
    flash_attention: bool = True
    full_windows: bool = False
    cache_in_host: bool = False
    experts_in_host: int = 0
    dense_in_host: int = 0
    overrides: tuple[tuple[str, bool], ...] = ()
    nextn: bool = False
    embeds: bool = False
    fits_itself: bool = True
    shortest: int | None = 4096
    margins: tuple[int, ...] = ()
    model: str | None = None
    projector: str | None = None
    projector_device: str = ""
    draft: str | None = None
    draft_device: str = ""
    draft_experts_in_host: int = 0
    draft_overrides: tuple[tuple[str, bool], ...] = ()
    draft_key_type: str = "f16"
    draft_value_type: str = "f16"

    def margin(self, number: int) -> int:
        """Return the bytes that stay free on a device, by its number: one margin is that of all."""
        if len(self.margins) == 1:
            return self.margins[0]
        return self.margins[number] if number < len(self.margins) else ROOM

    def of_draft(self) -> MemoryOptions:
        """Return the options with which the server loads its draft model."""
        return MemoryOptions(
            context=self.context,
            sequences=self.sequences,
            unified=self.unified,
            batch=self.batch,
            micro_batch=self.micro_batch,
            key_type=self.draft_key_type,
            value_type=self.draft_value_type,
            flash_attention=self.flash_attention,
            experts_in_host=self.draft_experts_in_host,
            overrides=self.draft_overrides,
        )


def memory_options(argv: Sequence[str], env: Mapping[str, str]) -> MemoryOptions:
    """Read the options as llama-server does: the last argument counts, and before a variable.

    A number that upstream would refuse counts as its default.
    """

    def text(*names: str, default: str = "") -> str:
        found = last_value(argv, env, names)
        return found[1] if found else default

    def number(*names: str, default: int = 0) -> int:
        value = text(*names).strip()
        # Upstream reads these with stoi: nine digits are more than any machine's memory.
        return int(value) if value.isdecimal() and len(value) <= 9 else default

    is_set = partial(flagged, argv, env)
    slots = number("-np", "--parallel", "LLAMA_ARG_N_PARALLEL")
    every = is_set("LLAMA_ARG_CPU_MOE", on=("-cmoe", "--cpu-moe"))
    some = number("-ncmoe", "--n-cpu-moe", "LLAMA_ARG_N_CPU_MOE")
    # Upstream: a context of 0 that is given forbids to shorten the model's own (common/arg.cpp,
    # ``fit_params_min_ctx``).
    whole = text("-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE").strip() == "0"
    least = number("-fitc", "--fit-ctx", "LLAMA_ARG_FIT_CTX", default=4096)
    context = number("-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE")
    # Upstream's server.cpp: this sizes the shared cache, unless the context is given in any way.
    each = number("--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT")
    context = context or (0 if whole else each * (slots or _SLOTS))
    every_draft = is_set(
        "LLAMA_ARG_SPEC_DRAFT_CPU_MOE", on=("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe")
    )
    some_draft = number(
        *("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe"),
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    )
    offloads = is_set(
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        on=("--mmproj-offload",),
        off=("--no-mmproj-offload",),
        default=True,
    )
    draft_layers = text(
        *("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    )
    draft_device = text("-devd", "--device-draft", "--spec-draft-device")
    projector_device = text("-mmdev", "--mmproj-device", "MTMD_BACKEND_DEVICE")
    variables = ("LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_URL")
    model = text("-m", "--model", "-mu", "--model-url", *variables)
    variables = ("LLAMA_ARG_MMPROJ", "LLAMA_ARG_MMPROJ_URL")
    projector = text("-mm", "--mmproj", "-mmu", "--mmproj-url", *variables)
    variables = ("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT")
    draft = text("-md", "--model-draft", "--spec-draft-model", *variables)
    return MemoryOptions(
        shortest=None if whole else least,
        margins=_margins(text("-fitt", "--fit-target", "LLAMA_ARG_FIT_TARGET")),
        context=context,
        sequences=slots or _SLOTS,
        unified=is_set(
            "LLAMA_ARG_KV_UNIFIED",
            on=("-kvu", "--kv-unified"),
            off=("-no-kvu", "--no-kv-unified"),
            default=slots == 0,
        ),
        batch=number("-b", "--batch-size", "LLAMA_ARG_BATCH", default=2048),
        micro_batch=number("-ub", "--ubatch-size", "LLAMA_ARG_UBATCH", default=512),
        key_type=text("-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K", default="f16"),
        value_type=text("-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V", default="f16"),
        flash_attention=text("-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN").lower() not in _NO,
        full_windows=is_set("LLAMA_ARG_SWA_FULL", on=("--swa-full",)),
        cache_in_host=not is_set(
            "LLAMA_ARG_KV_OFFLOAD",
            on=("-kvo", "--kv-offload"),
            off=("-nkvo", "--no-kv-offload"),
            default=True,
        ),
        experts_in_host=ALL if every else some,
        dense_in_host=number("-ncffn", "--n-cpu-ffn", "LLAMA_ARG_N_CPU_FFN"),
        overrides=_overrides(argv, _OVERRIDE, env.get("LLAMA_ARG_OVERRIDE_TENSOR", "")),
        nextn="draft-mtp" in text("--spec-type", "LLAMA_ARG_SPEC_TYPE").split(","),
        embeds=is_set("LLAMA_ARG_EMBEDDINGS", on=("--embedding", "--embeddings")),
        fits_itself=text("-fit", "--fit", "LLAMA_ARG_FIT").lower() not in _NO,
        model=model or None,
        projector=projector or None,
        projector_device=projector_device if offloads else "none",
        draft=draft or None,
        draft_device="none" if draft_layers.strip() == "0" else draft_device,
        draft_experts_in_host=ALL if every_draft else some_draft,
        draft_overrides=_overrides(argv, _DRAFT_OVERRIDE),
        draft_key_type=text(
            *("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
            "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
            default="f16",
        ),
        draft_value_type=text(
            *("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
            "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
            default="f16",
        ),
    )


_NO = ("off", "0", "false", "disabled")
_OVERRIDE = ("-ot", "--override-tensor")
_DRAFT_OVERRIDE = ("-otd", "--override-tensor-draft", "--spec-draft-override-tensor")


def _overrides(
    argv: Sequence[str], options: Sequence[str], variable: str = ""
) -> tuple[tuple[str, bool], ...]:
    """Return the pattern of each ``pattern=buffer type``; a server takes this option repeatedly."""
    texts = [value for word, value in pairwise(argv) if spelled(word) in options]
    found = (each.rpartition("=") for each in ",".join((variable, *texts)).split(","))
    return tuple(
        (pattern, buffer.upper().startswith("CPU")) for pattern, equals, buffer in found if equals
    )


def _margins(text: str) -> tuple[int, ...]:
    """Parse ``MiB0,MiB1/MiB2``; what upstream would refuse counts as its default."""
    numbers = [each for each in re.split("[,/]+", text) if each]
    if all(each.isdecimal() and len(each) <= 9 for each in numbers):
        return tuple(int(each) << 20 for each in numbers)
    return ()
