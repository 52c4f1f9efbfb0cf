"""Cards compared across backends: a policy decides only between devices of about the same size."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.machines import linux_variants, machine, release, variant

from tsuku_llm.choose.chain.links import subject_of
from tsuku_llm.choose.chain.ways import ways_to_gpus
from tsuku_llm.choose.fitting import device_ranks
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.machine.backends import POLICIES
from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Hardware

GB = 1 << 30
DISCRETE, INTEGRATED = GpuKind.DISCRETE, GpuKind.INTEGRATED

OFFERED = release(
    {
        **linux_variants(),
        "sycl": variant("sycl", {"level_zero": True}),
        "rocm-10.0": variant("rocm", {"rocm": {"runtime": "10.0", "gfx": ["gfx1100", "gfx1151"]}}),
    }
)


def card(api: str, name: str, memory: float | None, kind: GpuKind = DISCRETE, **more: Any) -> Gpu:
    size = None if memory is None else int(memory * GB)
    facts = {"compute_capability": "8.9"} if api == "cuda" else {"gfx": "gfx1100"}
    shown = {"api_version": "1.3"} if api == "vulkan" else facts
    return Gpu(api, 0, name, kind, size, **{**shown, **more})


def having(*gpus: Gpu) -> Hardware:
    """A machine whose drivers list these devices, each driver in this order."""
    versions = {"cuda": "13.4", "vulkan": "1.3", "rocm": "7.2", "level_zero": "1.9"}
    listed: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        each = listed.setdefault(gpu.api, [])
        each.append(replace(gpu, index=len(each)))
    apis = [
        Api(name, ApiState.OK, "a library", versions[name], gpus=tuple(each))
        for name, each in listed.items()
    ]
    return machine(*apis)


def chosen(hardware: Hardware, prefer: str = "portable") -> tuple[str, str | None]:
    best = select(OFFERED, hardware, Request(prefer=prefer)).selected
    return best.variant.backend, best.gpu.name if best.gpu else None


BOTH_POLICIES = pytest.mark.parametrize("prefer", POLICIES)

ACROSS = {
    "h200-beside-a-small-radeon": (
        [card("cuda", "NVIDIA H200", 139.8), card("vulkan", "RX 550", 2)],
        ("cuda", "NVIDIA H200"),
    ),
    "large-radeon-beside-a-small-geforce": (
        [card("cuda", "GTX 1650", 4), card("vulkan", "RX 7900 XTX", 24)],
        ("vulkan", "RX 7900 XTX"),
    ),
    "instinct-of-rocm-beside-a-geforce-of-both": (
        [
            card("rocm", "Instinct", 64),
            card("cuda", "RTX 3060", 11.6),
            card("vulkan", "RTX 3060", 12),
        ],
        ("rocm", "Instinct"),
    ),
    "maxwell-beside-a-modern-card-of-its-size": (
        [card("cuda", "Tesla M40 24GB", 23.9), card("vulkan", "RX 7900 XTX (RADV NAVI31)", 24)],
        ("vulkan", "RX 7900 XTX (RADV NAVI31)"),
    ),
    "pascal-beside-a-modern-card-of-its-size": (
        [card("vulkan", "Tesla P40", 24), card("cuda", "NVIDIA GeForce RTX 3090", 23.6)],
        ("cuda", "NVIDIA GeForce RTX 3090"),
    ),
    "polaris-beside-turing-of-its-size": (
        [card("vulkan", "RX 570 Series", 8), card("cuda", "NVIDIA GeForce RTX 2080 SUPER", 7.8)],
        ("cuda", "NVIDIA GeForce RTX 2080 SUPER"),
    ),
    "one-size-larger": (
        [card("cuda", "RTX 4060 Ti", 15.7), card("vulkan", "RX 6700 XT", 12)],
        ("cuda", "RTX 4060 Ti"),
    ),
    "arc-of-level-zero-beside-a-small-radeon": (
        [card("level_zero", "Arc B580", 11.3), card("vulkan", "RX 6400", 4)],
        ("sycl", "Arc B580"),
    ),
    "small-geforce-beside-a-roomy-processor": (
        [card("cuda", "GT 1010", 1), card("vulkan", "Radeon 8060S", 96, INTEGRATED)],
        ("vulkan", "Radeon 8060S"),
    ),
    "roomy-processor-of-rocm-beside-a-small-card-of-vulkan": (
        [card("rocm", "Radeon 8060S", 96, INTEGRATED, gfx="gfx1151"), card("vulkan", "GT 710", 2)],
        ("rocm", "Radeon 8060S"),
    ),
    "usual-card-beside-a-processor-with-more-memory": (
        [card("cuda", "RTX 3050", 4), card("vulkan", "Intel UHD", 94, INTEGRATED)],
        ("cuda", "RTX 3050"),
    ),
    "small-card-beside-a-small-processor": (
        [card("cuda", "MX150", 2), card("vulkan", "Intel UHD", 3, INTEGRATED)],
        ("cuda", "MX150"),
    ),
    "card-beside-a-virtual-one": (
        [card("cuda", "Tesla T4", 14.6), card("vulkan", "Virtio-GPU", 64, GpuKind.VIRTUAL)],
        ("cuda", "Tesla T4"),
    ),
}


@pytest.mark.parametrize("case", ACROSS)
@BOTH_POLICIES
def test_a_small_device_never_wins_because_of_its_api(case: str, prefer: str) -> None:
    gpus, expected = ACROSS[case]
    assert chosen(having(*gpus), prefer) == expected
    assert chosen(having(*reversed(gpus)), prefer) == expected


# One card through two drivers, in GB as they were reported or recorded.
SAME = {
    "rtx-4060-laptop": (7.75, 8.0),
    "rtx-4090": (23.64, 23.99),
    "h200": (139.80, 140.40),
    "gtx-1060-3gb": (2.94, 3.0),
    "without-memory-in-one": (None, 8.0),
    "without-memory": (None, None),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("prefer", "backend"), [("portable", "vulkan"), ("native", "cuda")])
def test_the_policy_decides_between_two_drivers_of_one_card(
    name: str, prefer: str, backend: str
) -> None:
    of_cuda, of_vulkan = SAME[name]
    hardware = having(card("cuda", name, of_cuda), card("vulkan", name, of_vulkan))
    assert chosen(hardware, prefer) == (backend, name)


@pytest.mark.parametrize(("prefer", "backend"), [("portable", "vulkan"), ("native", "rocm")])
def test_the_memory_of_an_integrated_device_is_not_compared_between_drivers(
    prefer: str, backend: str
) -> None:
    """A part of the machine's memory in Vulkan; in ROCm only what the firmware set aside."""
    apu = card("rocm", "APU", 0.5, INTEGRATED, gfx="gfx1151")
    assert chosen(having(apu, card("vulkan", "APU", 48, INTEGRATED)), prefer) == (backend, "APU")


@pytest.mark.parametrize(("prefer", "backend"), [("portable", "vulkan"), ("native", "cuda")])
@pytest.mark.parametrize("other", ["RX 6700 XT", "a card of tomorrow"])
def test_the_policy_decides_between_two_cards_of_one_size_and_no_clear_speed(
    other: str, prefer: str, backend: str
) -> None:
    two = having(card("cuda", "RTX 3060", 12), card("vulkan", other, 12))
    assert chosen(two, prefer)[0] == backend


def test_a_slow_card_is_named_before_a_smaller_fast_one() -> None:
    two = [card("vulkan", "Tesla M40 24GB", 24), card("vulkan", "RTX 4080", 16)]
    assert chosen(having(*two)) == ("vulkan", "Tesla M40 24GB")


def test_a_variant_is_judged_by_the_best_of_its_cards() -> None:
    two = [card("vulkan", "RX 550", 2), card("vulkan", "RTX 4090", 24)]
    assert chosen(having(card("cuda", "RTX 4090", 23.6), *two)) == ("vulkan", "RTX 4090")


def test_within_one_driver_a_roomy_processor_comes_before_a_small_card() -> None:
    two = [card("vulkan", "GT 710", 1), card("vulkan", "Radeon 8060S", 96, INTEGRATED)]
    assert chosen(having(*two)) == ("vulkan", "Radeon 8060S")


def test_the_users_own_order_does_not_put_a_small_card_first() -> None:
    hardware = having(card("cuda", "NVIDIA H200", 139.8), card("vulkan", "RX 550", 2))
    best = select(OFFERED, hardware, Request(prefer=("vulkan", "cuda"))).selected
    assert best.variant.backend == "cuda"
    asked = select(OFFERED, hardware, Request("vulkan")).selected
    assert asked.gpu is not None
    assert asked.gpu.name == "RX 550", "what the user asks for by name is done"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (card("cuda", "GT 710", 2, compute_capability="3.5"), "A100"),  # no driver helps it
        (card("cuda", "Tesla V100", 16, compute_capability="7.0"), "A100"),
        (card("cuda", "H200", 140, compute_capability="9.0"), "H200"),
    ],
    ids=["old", "smaller", "larger"],
)
def test_the_reason_is_about_the_best_card_that_something_can_be_done_about(
    other: Gpu, told: str, first: bool
) -> None:
    cards = [card("cuda", "A100", 40, compute_capability="8.0"), other]
    gpus = tuple(replace(gpu, index=i) for i, gpu in enumerate(cards[:: -1 if first else 1]))
    hardware = machine(Api("cuda", ApiState.OK, "libcuda.so.1", "12.4", gpus=gpus))
    rejected = select(OFFERED, hardware, Request()).rejected
    (reason,) = (each.reason for each in rejected if each.variant.name == "cuda-12.8")
    assert reason.slug == "cuda-ptx"
    assert reason.text.startswith(f"{told}: ")


# --- what stays idle -------------------------------------------------------------------------

# Cards that no build of CUDA fits with this driver, where no Vulkan driver is installed.
LEFT = {
    "a100-driver-12.4": ("8.0", "12.4"),
    "gtx-1080-ti-driver-12.2": ("6.1", "12.2"),
    "rtx-3090-driver-11.8": ("8.6", "11.8"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_card_that_no_build_fits_is_named(name: str) -> None:
    capability, driver = LEFT[name]
    gpu = card("cuda", name, 40, compute_capability=capability)
    hardware = machine(Api("cuda", ApiState.OK, "libcuda.so.1", driver, gpus=(gpu,)))
    found = select(OFFERED, hardware, Request())
    assert found.selected.variant.backend == "cpu"
    assert found.idle == (name,)
    assert select(OFFERED, hardware, Request("cpu")).idle == (), "the user wants the processor"


@pytest.mark.parametrize(
    ("gpus", "idle"),
    [
        ([], ()),
        ([card("cuda", "RTX 4090", 24)], ()),
        ([card("cuda", "RTX 4090", 23.6), card("vulkan", "RTX 4090", 24)], ()),
        ([card("cuda", "RTX 4090", 24), card("cuda", "RTX 3050", 4)], ()),
        ([card("cuda", "Tesla K80", 12, compute_capability="3.7"), card("vulkan", "RX 550", 2)],
         ("Tesla K80",)),
        ([card("rocm", "RX 580", 8, gfx="gfx803"), card("vulkan", "RX 580", 7.75)], ()),
        (
            [
                card("rocm", "RX 580", 8, gfx="gfx803"),
                card("level_zero", "UHD 770", 24, INTEGRATED),
            ],
            ("RX 580",),
        ),
        ([card("vulkan", "llvmpipe", 32, GpuKind.SOFTWARE)], ()),
    ],
)  # fmt: skip
def test_only_a_better_device_than_the_chosen_one_counts_as_idle(
    gpus: list[Gpu], idle: tuple[str, ...]
) -> None:
    assert select(OFFERED, having(*gpus), Request()).idle == idle


# --- properties ------------------------------------------------------------------------------

DEVICES = st.lists(
    st.builds(
        card,
        st.sampled_from(["cuda", "vulkan", "rocm", "level_zero"]),
        st.sampled_from(["one", "two", "three"]),
        st.none() | st.floats(0.25, 192),
        st.sampled_from([kind for kind in GpuKind if kind is not GpuKind.SOFTWARE]),
    ),
    min_size=1,
    max_size=5,
)


@given(DEVICES, st.sampled_from(POLICIES))
def test_no_card_that_is_left_idle_is_clearly_larger_than_the_chosen_one(
    gpus: list[Gpu], prefer: str
) -> None:
    best = select(OFFERED, having(*gpus), Request(prefer=prefer)).selected.gpu
    assert best is not None
    cards = [gpu.memory for gpu in gpus if gpu.kind is DISCRETE and gpu.memory]
    if best.kind is DISCRETE and best.memory:
        assert best.memory >= 0.85 * max(cards)
    elif best.kind is INTEGRATED:
        assert all(memory < 2.5 * GB for memory in cards)
    elif best.kind is not DISCRETE:
        assert not cards


@given(DEVICES)
def test_a_larger_card_never_ranks_behind_a_smaller_one_of_its_kind(gpus: list[Gpu]) -> None:
    ranks = device_ranks(gpus)
    known = sorted((gpu for gpu in gpus if gpu.memory), key=lambda gpu: gpu.memory or 0)
    for kind in GpuKind:
        for smaller, larger in pairwise(gpu for gpu in known if gpu.kind is kind):
            assert ranks[larger] <= ranks[smaller]


@given(DEVICES, st.floats(0.25, 192))
@example(
    [card("cuda", "GPU of the processor", 8, INTEGRATED), card("vulkan", "unknown", None)], 1.0
)
@example([card("cuda", "unknown", None), card("cuda", "GPU of the processor", 8, INTEGRATED)], 1.0)
def test_a_further_card_never_leads_to_a_worse_device(gpus: list[Gpu], memory: float) -> None:
    before = select(OFFERED, having(*gpus), Request()).selected.gpu
    more = [*gpus, card("vulkan", "further", memory)]
    after = select(OFFERED, having(*more), Request()).selected.gpu
    assert before is not None
    assert after is not None
    ranks = device_ranks([*more, before, after])
    assert ranks[after] <= ranks[before]


@pytest.mark.parametrize(("driver", "best"), [("panvk Mesa 25.2.3", "cpu"), ("g29p1", "vulkan")])
def test_the_processor_comes_before_mesas_driver_for_mali(driver: str, best: str) -> None:
    """3.6 against 13.2 tokens a second (ggml-org/llama.cpp#17783, and #22682 half a year later)."""
    hardware = having(card("vulkan", "Mali-G610", 8, INTEGRATED, vendor_id=0x13B5, driver=driver))
    chosen = select(OFFERED, hardware, Request())
    assert chosen.selected.variant.name == best
    assert subject_of("auto", chosen, hardware, None).backend == best
    assert not ways_to_gpus(chosen, hardware)
    # Whoever asks for the GPU gets it.
    asked = select(OFFERED, hardware, Request("gpu")).selected
    assert asked.device == "Mali-G610"
    assert ("slower" in (asked.note or "")) is (best == "cpu")
