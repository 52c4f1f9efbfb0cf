"""The memory that a server needs for a model, estimated from its GGUF headers. Pure.

Weights are counted in the file's table of tensors. What a layer keeps of the context follows from
the names of its tensors and from keys that mean the same for every architecture; the sizes are
those of upstream's llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and
llama-hparams.cpp. Upstream knows more of some architectures than their files say. Such a need is in
doubt, and upstream's own tool is asked (``fit_tool``). The buffers for computing are those of the
largest step of a layer, as measured with upstream's server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from tsuku_llm.ground.records import documented
from tsuku_llm.launch.memory.memory_options import MemoryOptions
from tsuku_llm.launch.memory.model_header import ModelHeader

_F32 = 4
_PAD = 256
"""Upstream rounds the tokens of a cache up to a multiple of this."""

_MOST_LAYERS = 1 << 12

# Bytes of a block of 32 numbers in each type of a cache.
_BLOCK_BYTES = {"f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22}
_BLOCK_BYTES |= {"q4_1": 20, "q4_0": 18, "iq4_nl": 18}

_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)")
_EXPERTS = re.compile(r"ffn_(?:up|down|gate|gate_up)_(?:ch)?exps\b")
_DENSE = re.compile(r"ffn_(?:up|down|gate)\.")
"""``LLM_FFN_DENSE_REGEX`` of upstream's common/common.h."""

# llama-arch.cpp has the layer of each tensor: these are computed with the output.
_OUTPUT = re.compile(r"(?:output|cls|dense_|altup_|per_layer_(?:model_)?proj)")

_CHUNK = 1 << 30
"""Bytes of Vulkan's largest allocation (suballocation_block_size in ggml-vulkan.cpp).

A graph's buffer is cut into such pieces by ggml-alloc.c, and what is larger may be there twice. So
it was for 12 of 23 architectures, on an H200 with b10434; smaller scores were there once for all.
"""

_DOUBT = 0.1
"""The part of a need by which the estimate may be too high and still counts as known."""


@documented("weights", "cache_size", "doubt")
class MemoryNeed(NamedTuple):
    """The memory of one start, all in bytes.

    ``layers`` are the weights of each layer, in order, and ``cache`` is what each of them keeps of
    the context. ``output`` are the weights that count as the last layer. ``other`` is what stays in
    main memory, such as the input embeddings. ``compute`` are the buffers of one
    device that computes; each further device needs them too. ``host_compute`` are those that
    stay in main memory also with every layer on a GPU.
    ``companions`` is the need of the other models of this start (mmproj, draft) on the main device,
    and ``elsewhere`` that on devices that the user named for them, "none" for main memory.
    ``driver`` is what the driver takes of a device for itself.
    ``shared`` is the part of ``output`` that is a copy of the embeddings: without a GPU there is
    none.
    ``spare`` is what each layer may keep less than ``cache``: filled if the header does not say
    which layers see a window only, or whether there is a cache. ``scores`` is what ``compute`` may
    be less. ``doubt`` is "most" if the need may therefore be much smaller, and "least" if nothing
    is known of the cache.
    """

    layers: tuple[int, ...]
    cache: tuple[int, ...]
    output: int
    other: int
    compute: int
    host_compute: int = 0
    companions: int = 0
    elsewhere: tuple[tuple[str, int], ...] = ()
    shared: int = 0
    driver: int = 0
    spare: tuple[int, ...] = ()
    scores: int = 0
    doubt: Literal["", "most", "least"] = ""

    @property
    def cache_size(self) -> int:
        """What all layers together keep of the context."""
        return sum(self.cache)

    @property
    def weights(self) -> int:
        """The weights of the model itself, each of them once."""
        return sum(self.layers) + self.output + self.other - self.shared

    def on_device(self, first: int = 0, last: int | None = None) -> int:
        """Return the need of a device that gets these layers; the output is the last of them.

        ``first`` to ``last`` (exclusive) are numbers of layers; None: up to the output.
        """
        count = len(self.layers)
        end = count + 1 if last is None else last
        held = sum(self.layers[first:end]) + sum(self.cache[first:end])
        return held + (self.output if end > count else 0) + self.compute + self.driver

    def beside(self, device: str = "none") -> int:
        """Return what other models of this start take there; upstream ignores the case of names."""
        return sum(size for name, size in self.elsewhere if name.casefold() == device.casefold())

    @property
    def on_one_device(self) -> int:
        """The need of a single device that holds every layer."""
        return self.on_device() + self.companions

    @property
    def total(self) -> int:
        """Everything, in whatever memory, with every layer on a device."""
        others = sum(size for _, size in self.elsewhere)
        return self.on_one_device + others + self.other + self.host_compute

    @property
    def on_processor(self) -> int:
        """The need of a start that uses no GPU."""
        others = sum(size for _, size in self.elsewhere)
        return self.on_one_device + others - self.driver + self.other - self.shared


class ContextCache(NamedTuple):
    """The cells of a cache: ``full`` for layers that see everything, ``window`` for the others.

    ``full`` is the context of all sequences together.
    """

    full: int
    window: int


def estimate_need(
    header: ModelHeader,
    options: MemoryOptions,
    *,
    draft: ModelHeader | None = None,
    projector: ModelHeader | None = None,
) -> MemoryNeed:
    """Estimate what a server takes for a model; ``draft`` and ``projector`` are its companions."""
    nextn = header.number("nextn_predict_layers")
    overrides = tuple(_compiled(options))
    named = [int(found[1]) + 1 for each in header.tensors if (found := _LAYER.match(each.name))]
    # A file says both; the table of tensors is what takes memory.
    count = min(max([header.number("block_count"), *named]), _MOST_LAYERS)
    # Upstream skips the layers that guess the next tokens, unless it is asked for them.
    used = count if options.nextn else max(0, count - nextn)
    weights, output, other = [0] * used, 0, 0
    names: list[set[str]] = [set() for _ in range(used)]
    embedded = 0
    has_output = False
    for tensor in header.tensors:
        found = _LAYER.match(tensor.name)
        if found is None:
            if _OUTPUT.match(tensor.name):
                output += tensor.size
            else:
                other += tensor.size
            embedded += tensor.size if tensor.name == "token_embd.weight" else 0
            has_output = has_output or tensor.name == "output.weight"
            continue
        layer = int(found[1])
        if layer >= used:
            continue
        names[layer].add(found[2])
        kept_back = layer < options.experts_in_host and _EXPERTS.match(found[2]) is not None
        kept_back |= layer < options.dense_in_host and _DENSE.match(found[2]) is not None
        told = (host for pattern, host in overrides if pattern.search(tensor.name))
        if next(told, kept_back):
            other += tensor.size
        else:
            weights[layer] += tensor.size
    # A model without output weights uses its embeddings, and the GPU gets a copy.
    shared = 0 if has_output else embedded
    cells = cache_cells(header, options)
    kept = [_cache_of_layer(header, options, cells, layer, names[layer]) for layer in range(used)]
    cache, spare = tuple(most for most, _ in kept), tuple(most - least for most, least in kept)
    companions = [*_companions(options, draft, projector)]
    need = MemoryNeed(
        layers=tuple(weights),
        cache=cache,
        output=output + shared,
        other=other,
        compute=_compute(header, options, cells),
        host_compute=_inputs(header, options, cells),
        companions=sum(size for device, size in companions if not device),
        elsewhere=tuple((device, size) for device, size in companions if device),
        shared=shared,
    )
    scores = 0 if options.flash_attention else _scores(header, options, cells) * _F32
    if scores >= max(_CHUNK, _DOUBT * need.total):
        need = need._replace(compute=need.compute + scores, scores=scores, doubt="most")
    if not any(cache) and _is_causal(header):
        need = need._replace(doubt="least")
    elif sum(spare) > _DOUBT * need.total:
        need = need._replace(doubt="most", spare=spare)
    if options.cache_in_host:
        need = need._replace(cache=(0,) * used, other=other + sum(cache), spare=())
    return need


def _is_causal(header: ModelHeader) -> bool:
    """Tell whether a model computes one token after the other; most others keep nothing."""
    return bool(header.values.get(f"{header.architecture}.attention.causal", True))


def _compiled(options: MemoryOptions) -> Iterator[tuple[re.Pattern[str], bool]]:
    """Yield the user's patterns; one that Python does not read is left out, as it is C++'s."""
    for pattern, in_host in options.overrides:
        with suppress(re.error):
            yield re.compile(pattern), in_host


def cache_cells(header: ModelHeader, options: MemoryOptions) -> ContextCache:
    """Return how many tokens the cache holds."""
    context = options.context or header.number("context_length") or _PAD
    context = _padded(context)
    if options.unified:
        streams, each = 1, context
    else:
        streams, each = options.sequences, _padded(max(1, context // options.sequences))
    window = header.number("attention.sliding_window")
    sharing = options.sequences if options.unified else 1
    batch = min(options.batch, options.micro_batch, context)
    windowed = _padded(min(each, window * sharing + batch)) if window else each
    if options.full_windows:
        windowed = each
    return ContextCache(each * streams, windowed * streams)


def _padded(tokens: int) -> int:
    return -(-tokens // _PAD) * _PAD


def _has_window(header: ModelHeader, layer: int) -> bool | None:
    """Tell whether a layer sees a window only; None if the header has a window and does not say."""
    if not header.number("attention.sliding_window"):
        return False
    pattern = header.arrays.get(f"{header.architecture}.attention.sliding_window_pattern")
    if pattern is not None:
        return layer < len(pattern) and bool(pattern[layer])
    # One number: the last of so many layers sees everything.
    if period := header.number("attention.sliding_window_pattern"):
        return layer % period < period - 1
    return None


def _cache_of_layer(
    header: ModelHeader, options: MemoryOptions, cells: ContextCache, layer: int, names: set[str]
) -> tuple[int, int]:
    """Return the most and the least bytes of a layer's cache: keys and values, a state, or both.

    The tensors of a layer tell what it computes.
    """
    state_size = row = 0
    begins = tuple(name.partition(".")[0] for name in names)
    state = any(name.startswith(("ssm_", "shortconv", "time_mix")) for name in begins)
    if state:
        state_size = _state(header) * _F32 * max(1, options.sequences)
    windowed = _has_window(header, layer)
    if _attends(header, begins, state=state) and not _reuses(header, layer):
        row = _keys_and_values(header, options, layer, windowed=bool(windowed))
    most = state_size + row * (cells.window if windowed else cells.full)
    # Of models that read the text at once, upstream gives a cache to some.
    least = 0 if not _is_causal(header) else state_size + row * cells.window
    return most, least if windowed is None or not _is_causal(header) else most


def _attends(header: ModelHeader, names: Sequence[str], *, state: bool) -> bool:
    if header.number("kda.head_dim") and state:
        return "attn_kv_a_mqa" in names
    if any(name in names for name in ("attn_k", "attn_kv_a_mqa", "attn_kv_b")):
        return True
    # A linear attention keeps a state, and has one matrix for all of its inputs, too.
    return "attn_qkv" in names and not state


def _reuses(header: ModelHeader, layer: int) -> bool:
    """Tell whether a layer reads the cache of an earlier one."""
    shared = header.number("attention.shared_kv_layers")
    return bool(shared) and layer >= header.number("block_count") - shared


def _keys_and_values(
    header: ModelHeader, options: MemoryOptions, layer: int, *, windowed: bool
) -> int:
    """Return the bytes that a layer keeps of each token."""
    heads = header.of_layer("attention.head_count", layer)
    shared = header.of_layer("attention.head_count_kv", layer, heads)
    width = header.number("embedding_length")
    suffix = "_swa" if windowed else ""
    # Upstream takes the heads of the first layer for this.
    usual = width // max(1, header.of_layer("attention.head_count", 0))
    key = header.number("attention.key_length", usual)
    value = header.number("attention.value_length", usual)
    key = header.number(f"attention.key_length{suffix}", key)
    value = header.number(f"attention.value_length{suffix}", value)
    row = _row(key * shared, options.key_type)
    # A latent attention keeps one row for both.
    if not header.number("attention.key_length_mla"):
        row += _row(value * shared, options.value_type)
    return row + _row(header.number("attention.indexer.key_length"), options.key_type)


def _row(numbers: int, kind: str) -> int:
    return numbers * _BLOCK_BYTES.get(kind, _BLOCK_BYTES["f16"]) // 32


def _state(header: ModelHeader) -> int:
    """Return the numbers that a recurrent layer keeps for each sequence."""
    width = header.number("embedding_length")
    if head := header.number("wkv.head_size"):
        return header.number("token_shift_count", 2) * width + width * head
    if kernel := header.number("shortconv.l_cache"):
        return width * (kernel - 1)
    kernel = header.number("ssm.conv_kernel")
    if head := header.number("kda.head_dim"):
        inner = header.of_layer("attention.head_count", 0) * head
        return 3 * ((kernel or 4) - 1) * inner + head * inner
    inner, size = header.number("ssm.inner_size"), header.number("ssm.state_size")
    mixed = inner + 2 * header.number("ssm.group_count") * size
    return max(0, kernel - 1) * mixed + inner * size


def _compute(header: ModelHeader, options: MemoryOptions, cells: ContextCache) -> int:
    """Estimate the buffers for computing: those of the largest step of a layer.

    The factors are how many results of each width live at the same time, as measured with
    upstream's server for eight architectures (tests/launch/test_need.py).
    """
    batch = min(options.batch, options.micro_batch, cells.full)
    width = header.number("embedding_length")
    inner = max(_all(header, "feed_forward_length"), default=0)
    chosen = header.number("expert_used_count")
    vocabulary = max(
        (
            each.shape[-1]
            for each in header.tensors
            if each.name in ("output.weight", "token_embd.weight") and each.shape
        ),
        default=0,
    )
    outputs = batch if options.embeds else min(batch, options.sequences)
    each = cells.full // (1 if options.unified else max(1, options.sequences))
    windowed = cells.window // (1 if options.unified else max(1, options.sequences))
    # A model that only keeps a state has no heads.
    heads = max(_all(header, "attention.head_count"), default=0)
    masks = (each + (windowed if header.number("attention.sliding_window") else 0)) if heads else 0
    steps = [3 * inner + 4 * width]
    if chosen:
        # Every token gets a result of each of its experts.
        expert = header.number("expert_feed_forward_length") or inner
        steps.append(2 * chosen * (width + expert))
    if mixed := header.number("ssm.inner_size"):
        steps.append(5 * mixed + 3 * width)
    attention = 5 * width
    if latent := header.number("attention.key_length_mla"):
        # A latent attention makes a whole head of the shared row for each of its heads.
        row = header.number("attention.key_length") + header.number("attention.value_length")
        attention = heads * (row + 2 * latent) + 2 * width
        steps.append(attention)
    last = outputs * vocabulary
    if options.flash_attention:
        return max(batch * max(steps), last) * _F32 + batch * masks * 2
    # Without flash attention the scores of every head are there at once.
    scores = _scores(header, options, cells)
    return max(scores + batch * attention, batch * max(steps), last) * _F32 + batch * masks * _F32


def _scores(header: ModelHeader, options: MemoryOptions, cells: ContextCache) -> int:
    """Return the scores of one step: of each of its tokens with all that its sequence has."""
    batch = min(options.batch, options.micro_batch, cells.full)
    each = cells.full // (1 if options.unified else max(1, options.sequences))
    return batch * each * max(_all(header, "attention.head_count"), default=0)


def _inputs(header: ModelHeader, options: MemoryOptions, cells: ContextCache) -> int:
    """Estimate what is computed in main memory first: the embedded tokens and the masks."""
    batch = min(options.batch, options.micro_batch, cells.full)
    return batch * (header.number("embedding_length") * _F32 + cells.full * 2)


def _all(header: ModelHeader, key: str) -> Iterator[int]:
    several = header.arrays.get(f"{header.architecture}.{key}")
    if several is None:
        yield header.number(key)
    else:
        yield from (header.of_layer(key, layer) for layer in range(len(several)))


def _companions(
    options: MemoryOptions, draft: ModelHeader | None, projector: ModelHeader | None
) -> Iterator[tuple[str, int]]:
    """Yield the device of each other model, "" for the main one, and the bytes that it takes."""
    if draft:
        need = estimate_need(draft, options.of_draft())
        if options.draft_device == "none":
            yield "none", need.on_processor
        else:
            yield options.draft_device, need.on_one_device
            yield "none", need.other
    if projector:
        # The encoder of an image: its weights, and as much again for the largest image is too much
        # for large ones; upstream reserves some hundred megabytes.
        size = sum(tensor.size for tensor in projector.tensors) + _PROJECTOR_BUFFERS
        yield options.projector_device, size


_PROJECTOR_BUFFERS = 256 << 20
