"""The user's wishes about the GPU, as the server's arguments and variables say them. Pure.

A server that does what its user asked for is healthy, also if the GPU holds only a part of the
model. So the policy of ``verdict`` compares with these wishes, and accuses no server of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from tsuku_llm.ground.safe_text import Secret

_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS")
DEVICE = ("-dev", "--device", "LLAMA_ARG_DEVICE")
"""What names the devices; other options divide the model among those that the build lists."""
_RPC = ("--rpc", "LLAMA_ARG_RPC")
_SPLIT_MODE = ("-sm", "--split-mode", "LLAMA_ARG_SPLIT_MODE")
_MAIN = ("-mg", "--main-gpu", "LLAMA_ARG_MAIN_GPU")
_MODEL = ("-m", "--model", "LLAMA_ARG_MODEL")
_HUB = ("-hf", "-hfr", "--hf-repo", "LLAMA_ARG_HF_REPO")
_HUB_FILE = ("-hff", "--hf-file", "LLAMA_ARG_HF_FILE")
_REPOSITORY: tuple[str, ...] = (*_HUB, "-mu", "--model-url", "-dr", "--docker-repo")
_REPOSITORY += ("LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO")
MODELS_PRESET = "--models-preset"
MODELS_MAX = ("--models-max", "LLAMA_ARG_MODELS_MAX")
USERS_PRESET = (MODELS_PRESET, "LLAMA_ARG_MODELS_PRESET")
_ROUTER = ("--models-dir", "LLAMA_ARG_MODELS_DIR", *USERS_PRESET)
_DRAFT_REPOSITORY: tuple[str, ...] = ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf")
_DRAFT_REPOSITORY += ("LLAMA_ARG_HFD_REPO", "LLAMA_ARG_SPEC_DRAFT_HF_REPO")
_PROJECTORS = ("-mmu", "--mmproj-url", "LLAMA_ARG_MMPROJ_URL")
_SLEEP = ("--sleep-idle-seconds", "LLAMA_ARG_SLEEP_IDLE_SECONDS")
# ggml looks only whether they are set. No driver counts that memory for a process: 8 GiB of managed
# memory, filled by the GPU, were not in NVIDIA's count (H200, 580.159.04).
_SHARED = (
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
    "GGML_VK_PREFER_HOST_MEMORY",
    "GGML_VK_ALLOW_SYSMEM_FALLBACK",
)
_KEY = ("--api-key", "LLAMA_API_KEY")
_KEY_FILE = ("--api-key-file", "LLAMA_ARG_API_KEY_FILE")

ANSWERS = frozenset(
    {"-h", "--help", "--usage", "--version", "--license", "--list-devices"}
    | {"-cl", "--cache-list", "--completion-bash"}
)
"""Arguments with which the server prints something and ends: it was not asked to serve."""

_DRAFT = (
    *("-md", "--model-draft", "--spec-draft-model", *_DRAFT_REPOSITORY),
    *("LLAMA_ARG_MODEL_DRAFT", "LLAMA_ARG_SPEC_DRAFT_MODEL"),
)
_DRAFT_DEVICE = ("-devd", "--device-draft", "--spec-draft-device")

# A user who gives one of these chooses the devices.
_PLACED = (
    *DEVICE,
    *_SPLIT_MODE,
    *("-ts", "--tensor-split", "LLAMA_ARG_TENSOR_SPLIT"),
    *_MAIN,
    *_RPC,
)
_MARGINS = ("-fitt", "--fit-target", "LLAMA_ARG_FIT_TARGET")
_VISIBLE = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
    | {"GGML_VK_VISIBLE_DEVICES", "MESA_VK_DEVICE_SELECT", "ONEAPI_DEVICE_SELECTOR"}
    | {"ZE_AFFINITY_MASK", "GGML_OPENCL_DEVICE", "GGML_OPENVINO_DEVICE"}
)
"""The variables that choose devices; the other ones of a backend choose drivers."""

# Options that put single tensors elsewhere, so that layers on the GPU are not whole.
_TENSORS = frozenset(
    {"-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"}
    | {"-ncffn", "--n-cpu-ffn", "LLAMA_ARG_N_CPU_FFN"}  # since b11434 at the latest
    | {"LLAMA_ARG_OVERRIDE_TENSOR", "LLAMA_ARG_CPU_MOE", "LLAMA_ARG_N_CPU_MOE"}
)


class Wishes(NamedTuple):
    """The wishes of one start; a text is the argument with its value, None: not given.

    ``refusal`` keeps the server from the GPU. ``layers`` is how many layers the GPU shall hold,
    None for as many as possible. ``devices`` are the names of those that it may use, empty for
    all. ``split`` leaves tensors of these layers in main memory.
    ``remote`` names other machines that compute. ``model`` is a path; without any model
    (``names_model``) the server is a router, which starts other servers for its models. ``hub`` are
    the arguments that name one on Hugging Face. A server
    that ``sleeps`` frees its memory while it has no requests. ``shared`` is a variable with which
    the GPU computes in memory that it shares with the processor.
    ``key`` and ``key_file`` are for its API. ``placed`` is the first word that chooses devices, or
    divides the model among them. ``draft``: a draft model has no device of its own.
    ``only`` is the number of the one device that has everything (``--split-mode none``).
    """

    refusal: str | None = None
    layers: int | None = None
    devices: tuple[str, ...] = ()
    split: str | None = None
    remote: str | None = None
    names_model: bool = False
    model: str | None = None
    hub: tuple[str, ...] = ()
    key: Secret | None = None
    key_file: str | None = None
    sleeps: bool = False
    shared: str | None = None
    placed: str | None = None
    draft: bool = False
    only: int | None = None

    @property
    def wants_key(self) -> bool:
        """Whether the server is told to answer only who has a key."""
        return bool(self.key_file or (self.key and self.key.reveal()))

    @property
    def device_layers(self) -> int | None:
        """How many layers devices get: none after a refusal, None for as many as possible."""
        return 0 if self.refusal else self.layers


def wishes_in(argv: Sequence[str], env: Mapping[str, str]) -> Wishes:
    """Read the wishes as llama-server does: the last argument counts, and before a variable."""
    chosen = partial(last_value, argv, env)

    def value_of(names: Sequence[str]) -> str | None:
        found = chosen(names)
        return found[1] if found else None

    # Upstream: no layer, or no device.
    layers, device, remote = chosen(_LAYERS), chosen(DEVICE), chosen(_RPC)
    refusals = [layers if layers and layers[1] == "0" else None]
    refusals += [device if device and device[1] == "none" else None]
    # Several margins are of the devices in the server's order, which a choice of ours would change.
    margins = chosen(_MARGINS)
    placed = chosen(_PLACED) or (margins if margins and re.search("[,/]", margins[1]) else None)
    main = (value_of(_MAIN) or "0").strip()
    # A variable that is set to a word for "no" is not given.
    given = set(map(spelled, argv)) | {
        name for name, value in env.items() if value not in ("", "0", "false")
    }
    return Wishes(
        refusal=next((" ".join(each) for each in refusals if each), None),
        # "auto", "all", and negative numbers mean: as many as possible.
        layers=int(layers[1]) if layers and layers[1].isdecimal() and layers[1] != "0" else None,
        devices=tuple(device[1].split(",")) if device and device[1] != "none" else (),
        split=next(iter(sorted(given & _TENSORS)), None),
        remote=" ".join(remote) if remote else None,
        names_model=bool(chosen(_MODEL) or chosen(_REPOSITORY)),
        model=value_of(_MODEL),
        hub=tuple(
            word
            for option, names in (("-hf", _HUB), ("--hf-file", _HUB_FILE))
            if chosen(_HUB) and (value := value_of(names))
            for word in (option, value)
        ),
        key=Secret(key) if (key := value_of(_KEY)) else None,
        key_file=value_of(_KEY_FILE),
        # Upstream: a negative number, the default, means never.
        sleeps=(value_of(_SLEEP) or "-").isdecimal(),
        shared=next((name for name in _SHARED if name in env), None),
        placed=" ".join(placed) if placed else None,
        draft=bool(chosen(_DRAFT)) and chosen(_DRAFT_DEVICE) is None,
        only=int(main) if value_of(_SPLIT_MODE) == "none" and main.isdecimal() else None,
    )


ELSEWHERE = ("--host", "--port", "--api-key", "--api-key-file", "--alias", "-a", "--api-prefix")
"""The server's options for where it listens and who may ask it; each has a value."""


def without_options(argv: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """Yield the arguments without options of these names, and without the value of each."""
    words = iter(argv)
    for word in words:
        if word in names:
            next(words, None)
        else:
            yield word


def names_a_model(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether a start knows its models, or is asked for something else than to serve."""
    return any(
        last_value(argv, env, names) for names in (_MODEL, _REPOSITORY, _ROUTER)
    ) or answers_and_ends(argv)


def answers_and_ends(argv: Sequence[str]) -> bool:
    """Tell whether a server is asked for something else than to serve, such as its help."""
    return not ANSWERS.isdisjoint(argv)


def downloads_in(argv: Sequence[str], env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what a server downloads for a start: options or variables, with their values."""
    if flagged(argv, env, "LLAMA_ARG_OFFLINE", on=("--offline",)):
        return ()
    found = [
        last_value(argv, env, names) for names in (_REPOSITORY, _DRAFT_REPOSITORY, _PROJECTORS)
    ]
    return tuple(each for each in found if each)


def visible_devices(env: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first of a backend's variables that chooses devices, with its value."""
    return next((f"{name}={env[name]}" for name in names if name in _VISIBLE & env.keys()), None)


def last_value(
    argv: Sequence[str], env: Mapping[str, str], names: Sequence[str]
) -> tuple[str, str] | None:
    """Return the name and the value that count for an option; None if it is not given.

    ``names`` are its spellings and its variables, as upstream's help has them.
    """
    found = next(((name, env[name]) for name in names if env.get(name)), None)
    for word, value in pairwise(argv):
        option = spelled(word)
        found = (option, value) if option in names else found
    return found


def flagged(
    argv: Sequence[str],
    env: Mapping[str, str],
    variable: str,
    *,
    on: Sequence[str],
    off: Sequence[str] = (),
    default: bool = False,
) -> bool:
    """Tell what counts for an option without a value, which has words for yes, and some for no."""
    value = env.get(variable)
    state = default if value is None else value.lower() not in ("", "0", "false", "off", "disabled")
    # Upstream: an older variable for "no" comes first, whatever its value is.
    if off and variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") in env:
        state = False
    for word in map(spelled, argv):
        state = word in on or (state and word not in off)
    return state


def spelled(word: str) -> str:
    """Return an argument as upstream's help spells it: "_" in a long option means "-"."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word
