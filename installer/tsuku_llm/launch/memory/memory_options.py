"""The server's arguments and variables that decide how much memory it takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    def text(*names: str, default: str) -> str:
        found = last_value(argv, env, names)
        return found[1] if found else default

    def number(*names: str, default: int) -> int:
        value = text(*names, default="").strip()
        # Upstream reads these with stoi: nine digits are more than any machine's memory.
        return int(value) if value.isdecimal() and len(value) <= 9 else default

    def path(*names: str) -> str | None:
        found = last_value(argv, env, names)
        return found[1] if found else None

    def set_to(on: Sequence[str], off: Sequence[str], variable: str, *, default: bool) -> bool:
        return flagged(argv, env, on=on, off=off, variable=variable, default=default)

    slots = number("-np", "--parallel", "LLAMA_ARG_N_PARALLEL", default=0)
    every = set_to(("-cmoe", "--cpu-moe"), (), "LLAMA_ARG_CPU_MOE", default=False)
    some = number("-ncmoe", "--n-cpu-moe", "LLAMA_ARG_N_CPU_MOE", default=0)
    flash = text("-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN", default="auto")
    fit = text("-fit", "--fit", "LLAMA_ARG_FIT", default="on")
    # Upstream: a context of 0 that is given forbids to shorten the model's own (common/arg.cpp,
    # ``fit_params_min_ctx``).
    whole = text("-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE", default="").strip() == "0"
    least = number("-fitc", "--fit-ctx", "LLAMA_ARG_FIT_CTX", default=4096)
    context = number("-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE", default=0)
    # Upstream's server.cpp: this sizes the shared cache, unless the context is given in any way.
    each = number("--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT", default=0)
    context = context or (0 if whole else each * (slots or _SLOTS))
    every_draft = set_to(
        ("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"),
        (),
        "LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
        default=False,
    )
    some_draft = number(*_DRAFT_EXPERTS, default=0)
    offloads = set_to(
        ("--mmproj-offload",),
        ("--no-mmproj-offload",),
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        default=True,
    )
    projector_device = text("-mmdev", "--mmproj-device", "MTMD_BACKEND_DEVICE", default="")
    draft_device = text("-devd", "--device-draft", "--spec-draft-device", default="")
    no_draft_layer = text(*_DRAFT_LAYERS, default="").strip() == "0"
    return MemoryOptions(
        shortest=None if whole else least,
        margins=_margins(text("-fitt", "--fit-target", "LLAMA_ARG_FIT_TARGET", default="")),
        context=context,
        sequences=slots or _SLOTS,
        unified=set_to(
            ("-kvu", "--kv-unified"),
            ("-no-kvu", "--no-kv-unified"),
            "LLAMA_ARG_KV_UNIFIED",
            default=slots == 0,
        ),
        batch=number("-b", "--batch-size", "LLAMA_ARG_BATCH", default=2048),
        micro_batch=number("-ub", "--ubatch-size", "LLAMA_ARG_UBATCH", default=512),
        key_type=text("-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K", default="f16"),
        value_type=text("-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V", default="f16"),
        flash_attention=flash.lower() not in _NO,
        full_windows=set_to(("--swa-full",), (), "LLAMA_ARG_SWA_FULL", default=False),
        cache_in_host=not set_to(
            ("-kvo", "--kv-offload"),
            ("-nkvo", "--no-kv-offload"),
            "LLAMA_ARG_KV_OFFLOAD",
            default=True,
        ),
        experts_in_host=ALL if every else some,
        dense_in_host=number("-ncffn", "--n-cpu-ffn", "LLAMA_ARG_N_CPU_FFN", default=0),
        overrides=_overrides(argv, _OVERRIDE, env.get("LLAMA_ARG_OVERRIDE_TENSOR", "")),
        nextn="draft-mtp" in text("--spec-type", "LLAMA_ARG_SPEC_TYPE", default="").split(","),
        embeds=set_to(("--embedding", "--embeddings"), (), "LLAMA_ARG_EMBEDDINGS", default=False),
        fits_itself=fit.lower() not in _NO,
        model=path("-m", "--model", "-mu", "--model-url", *_MODEL_VARIABLES),
        projector=path("-mm", "--mmproj", "-mmu", "--mmproj-url", *_PROJECTOR_VARIABLES),
        projector_device=projector_device if offloads else "none",
        draft=path("-md", "--model-draft", "--spec-draft-model", *_DRAFT_VARIABLES),
        draft_device="none" if no_draft_layer else draft_device,
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
_MODEL_VARIABLES = ("LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_URL")
_PROJECTOR_VARIABLES = ("LLAMA_ARG_MMPROJ", "LLAMA_ARG_MMPROJ_URL")
_DRAFT_VARIABLES = ("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT")
_OVERRIDE = ("-ot", "--override-tensor")
_DRAFT_OVERRIDE = ("-otd", "--override-tensor-draft", "--spec-draft-override-tensor")
_DRAFT_EXPERTS = (
    *("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe"),
    "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
)
_DRAFT_LAYERS = (
    *("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
)


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
