"""Whether a model fits: words, what a server moves by itself, and remedies that really help."""

import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import model_headers
from support.model_headers import F16, Shape, write_shape

from tsuku_llm.launch.memory.fit import Card, Fit, judge, together
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.memory_options import ROOM, memory_options
from tsuku_llm.launch.memory.model_header import ModelHeader
from tsuku_llm.launch.memory.need import MemoryNeed, estimate_need
from tsuku_llm.launch.plan.report import GpuHolder

GB = 10**9


def memory(name: str, free: int | None = None, total: int | None = None) -> Card:
    return Card(name, free=free, total=total)


HOST = memory("the machine", 64 * GB, 64 * GB)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelHeader:
    return read(tmp_path_factory.mktemp("model"), model_headers.llama())


def read(folder: Path, shape: Shape, weights: int = F16) -> ModelHeader:
    return read_header(str(write_shape(folder / "m.gguf", shape, weights=weights, vocabulary=9)))


def fit(
    header: ModelHeader,
    words: str,
    *devices: Card,
    host: Card = HOST,
    layers: int | None = None,
) -> Fit:
    return judge(
        partial(estimate_need, header),
        memory_options(words.split(), {}),
        devices,
        host,
        own_context=header.number("context_length"),
        numbers=header.numbers,
        asked_layers=layers,
    )


def card(free: float, name: str = "Vulkan0", total: float = 25.4) -> Card:
    return memory(name, int(free * GB), int(total * GB))


def test_the_words_are_the_need_and_what_is_free(llama: ModelHeader) -> None:
    holder = GpuHolder(4711, "python3", 2 * GB)
    device = card(23.1)._replace(holders=(holder,))
    (line,) = fit(llama, "-c 8192", device).told
    assert line == (
        "needs 17.3 GB (weights 16.1 GB, cache 1.1 GB, buffers 147 MB) for a context of 8192; "
        "Vulkan0 has 23.1 GB of 25.4 GB free (python3, 2.0 GB)"
    )


def test_a_context_that_nobody_asked_for_is_shortened(llama: ModelHeader) -> None:
    """Llama 3.1 has 131072 tokens, of 128 KiB each; the rest of the card holds some of them."""
    found = fit(llama, "", card(23.1))
    assert found.fits
    assert found.on_devices == found.layers == 33
    assert found.context == 131072
    assert found.shortened is not None
    assert 4096 < found.shortened < 131072
    assert f"shortens the context to about {found.shortened}" in found.told[1]
    asked = fit(llama, f"-c {found.shortened}", card(23.1))
    assert asked.fits
    assert asked.shortened is None


# Upstream b11434: tools/server/server.cpp, "size the KV pool from --kv-unified-per-slot".
@pytest.mark.parametrize(
    ("words", "context"),
    [
        ("-np 16 --kv-unified-per-slot 8192", 131072),
        ("--kv-unified-per-slot 2048", 4 * 2048),
        ("-c 4096 -np 16 --kv-unified-per-slot 8192", 4096),
        ("-c 0 --kv-unified-per-slot 100", 131072),
        ("--kv-unified-per-slot 0", 131072),
    ],
)
def test_a_context_for_each_slot_makes_that_of_all(
    words: str, context: int, llama: ModelHeader
) -> None:
    found = fit(llama, words, card(80, total=80))
    assert (found.context, found.shortened) == (context, None)


def test_a_context_for_each_slot_is_not_shortened(llama: ModelHeader) -> None:
    """Upstream's --fit leaves a context that is set as it is (common/fit.cpp)."""
    assert fit(llama, "-np 16 --kv-unified-per-slot 8192", card(23.1)).fits is False


# Upstream: common/arg.cpp, "--fit-target": MiB for each device, one number for all of them.
def test_the_margin_is_the_one_that_was_given(llama: ModelHeader) -> None:
    usual = fit(llama, "", card(23.1)).shortened or 0
    assert fit(llama, "-fitt 1024", card(23.1)).shortened == usual
    assert (fit(llama, "--fit-target 0", card(23.1)).shortened or 0) > usual
    less = fit(llama, "-fitt 4096", card(23.1)).shortened or 0
    # Three gigabytes less room, of 128 KiB for each token.
    assert usual - less == pytest.approx(3 * 1024 * 8, abs=512)
    assert fit(llama, "-fitt many", card(23.1)).shortened == usual


def test_each_device_has_its_own_margin(llama: ModelHeader) -> None:
    one, two = card(12), card(12, "Vulkan1")
    assert fit(llama, "-c 8192 -fitt 1024,1024", one, two).fits
    assert fit(llama, "-c 8192 -fitt 1024,9000", one, two).fits is False
    assert fit(llama, "-c 8192 -fitt 9000/1024", one, two).fits is False
    # The third one of two is nobody's, and a device without a number has upstream's gigabyte.
    assert fit(llama, "-c 8192 -fitt 1024,1024,90000", one, two).fits
    assert fit(llama, "-c 8192 -fitt 0,0", card(18.3), card(1, "Vulkan1")).fits


def test_a_companion_takes_the_room_of_its_device(llama: ModelHeader) -> None:
    one, two = card(12), card(12, "Vulkan1")
    for elsewhere, fits in (
        ((), True),
        ((("vulkan1", 6 * GB),), False),
        ((("Vulkan2", 6 * GB),), True),
        ((("none", 6 * GB),), True),
        ((("none", 65 * GB),), False),
    ):
        found = judge(
            lambda options, held=elsewhere: estimate_need(llama, options)._replace(elsewhere=held),
            memory_options(["-c", "8192"], {}),
            (one, two),
            HOST,
            own_context=131072,
        )
        assert found.fits is fits, elsewhere


def test_a_context_that_was_asked_for_moves_layers(llama: ModelHeader) -> None:
    found = fit(llama, "-c 131072", card(23.1))
    assert found.fits is False
    assert 0 < found.on_devices < 33
    assert f"{found.on_devices} of 33 layers go to the GPU" in found.told[1]


@pytest.mark.parametrize("words", ["-c 131072", "-c 131072 --fit off", "-fit off"])
def test_each_remedy_makes_it_fit(words: str, llama: ModelHeader) -> None:
    found = fit(llama, words, card(23.1))
    assert found.remedies
    for remedy in found.remedies:
        if arguments := re.search(r"\((-.*)\)", remedy):
            assert fit(llama, f"{words} {arguments[1]}", card(23.1)).fits, remedy


def test_the_experts_may_go_to_main_memory(tmp_path: Path) -> None:
    header = read(tmp_path, model_headers.qwen3_moe())
    found = fit(header, "-c 8192", card(23.1))
    (experts,) = [each for each in found.remedies if "-ncmoe" in each]
    number = int(re.findall(r"-ncmoe (\d+)", experts)[0])
    assert 0 < number < 48
    assert fit(header, f"-c 8192 -ncmoe {number}", card(23.1)).fits
    assert not fit(header, f"-c 8192 -ncmoe {number - 1}", card(23.1)).fits


def test_a_quantisation_is_named_in_bits_for_each_weight(llama: ModelHeader) -> None:
    found = fit(llama, "-c 8192", card(12, total=12))
    (bits,) = [each for each in found.remedies if "bits" in each]
    # 12 GB, less a gigabyte of room, 1.1 GB of cache and the buffers: 9.73 GB are left for 7.50
    # billion weights, without the embeddings.
    most, now = re.findall(r"[\d.]+", bits)
    assert most == "10.3"
    assert now == "16.0"


def test_without_a_remedy_the_words_say_so(llama: ModelHeader) -> None:
    found = fit(llama, "-c 8192", card(2, total=2), host=memory("the machine", 4 * GB, 8 * GB))
    assert found.remedies == ()
    assert "use a smaller model" in found.told[-1]
    assert found.missing > 0


def test_two_devices_hold_what_one_does_not(llama: ModelHeader) -> None:
    one, two = card(12), card(12, "Vulkan1")
    assert fit(llama, "-c 8192", one).fits is False
    both = fit(llama, "-c 8192", one, two)
    assert both.fits
    assert "Vulkan0 has" in both.told[0]
    assert "Vulkan1 has" in both.told[0]


def test_on_the_processor_main_memory_counts(llama: ModelHeader) -> None:
    small = fit(llama, "-c 8192", host=memory("main memory", 12 * GB, 16 * GB))
    assert small.fits is False
    assert small.missing == pytest.approx(5.3 * GB, rel=0.01)
    assert "main memory has 12.0 GB of 16.0 GB free" in small.told[0]
    assert fit(llama, "-c 8192", card(1), layers=0).devices == ()


def test_an_unknown_memory_gives_no_verdict(llama: ModelHeader) -> None:
    found = fit(llama, "-c 8192", memory("Vulkan0", None, None))
    assert found.fits is None
    assert found.told[0].endswith("; Vulkan0: size unknown")


def test_where_only_all_the_memory_is_known_it_counts(llama: ModelHeader) -> None:
    found = fit(llama, "-c 8192", memory("Vulkan0", None, 25 * GB))
    assert found.fits
    assert found.told[0].endswith("; Vulkan0 has 25.0 GB")
    assert fit(llama, "-c 8192", memory("Vulkan0", None, 16 * GB)).fits is False


@given(
    frees=st.lists(st.integers(0, 48), max_size=4),
    context=st.integers(0, 200_000),
    more=st.integers(0, 30),
    layers=st.none() | st.integers(0, 40),
)
def test_more_memory_never_fits_less(
    frees: list[int], context: int, more: int, layers: int | None, llama: ModelHeader
) -> None:
    words = f"-c {context}" if context else ""
    before = fit(
        llama, words, *(card(free, f"D{n}") for n, free in enumerate(frees)), layers=layers
    )
    after = fit(
        llama,
        words,
        *(card(free + more, f"D{n}") for n, free in enumerate(frees)),
        host=HOST._replace(free=(HOST.free or 0) + more * GB),
        layers=layers,
    )
    assert (after.fits or False) >= (before.fits or False)
    assert after.on_devices >= before.on_devices
    assert (after.shortened or 1 << 30) >= (before.shortened or 0) or after.shortened is None


def test_a_gigabyte_of_a_device_stays_free() -> None:
    need = MemoryNeed(layers=(GB, GB), cache=(0, 0), output=GB, other=0, compute=0)
    exact = memory("D0", 3 * GB + ROOM, None)
    options = memory_options(["-c", "4096"], {})
    assert judge(lambda _: need, options, [exact], HOST, own_context=4096).fits
    less = exact._replace(free=3 * GB + ROOM - 1)
    found = judge(lambda _: need, options, [less], HOST, own_context=4096)
    assert found.fits is False
    # The output and the last layer come first.
    assert found.on_devices == 2


# --- several models at a time ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "words", "count"),
    [
        # One takes 16.2 GB of it with 8192 tokens, and upstream leaves 1.07 GB of a card free.
        (23.1, "-c 8192", 1),
        (33.0, "-c 8192", 1),
        (34.0, "-c 8192", 2),
        (80.0, "-c 8192", 4),
        # Without a context each takes what there is: a second one would find nothing.
        (30.0, "", 1),
        # More than the card has: layers in main memory, and the card is full all the same.
        (10.0, "-c 8192", 1),
    ],
)
def test_what_fits_together(free: float, words: str, count: int, llama: ModelHeader) -> None:
    assert together([fit(llama, words, card(free, total=100))] * 4, ROOM) == count


def test_main_memory_counts_as_well(llama: ModelHeader) -> None:
    alone = partial(fit, llama, "-c 8192", host=memory("main", 40 * GB, 64 * GB))
    assert together([alone()] * 3, 0) == 2
    # Layers that the card has no room for.
    assert together([alone(card(10.0))] * 3, ROOM) == 1


def test_with_an_unknown_memory_nothing_is_said(llama: ModelHeader) -> None:
    known, unknown = card(80), memory("Vulkan1", None, None)
    assert together([fit(llama, "-c 8192", known), fit(llama, "-c 8192", unknown)], ROOM) is None
    assert together([fit(llama, "-c 8192", host=memory("main", None, None))], 0) is None


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(1, 90),
    st.booleans(),
)
def test_any_that_are_loaded_at_a_time_fit(sizes: list[int], room: int, on_card: bool) -> None:
    """Whichever models clients ask for, and in whatever order."""
    space = memory("memory", room * GB, 99 * GB)
    devices, host = ((space,), HOST) if on_card else ((), space)

    def alone(size: int) -> Fit:
        need = MemoryNeed((size * GB,), (0,), 0, 0, 0)
        options = memory_options(["-c", "1", "-fitt", "0"], {})
        return judge(lambda _: need, options, devices, host, own_context=1)

    count = together([alone(size) for size in sizes], 0)
    assert count is not None
    largest = sorted(sizes, reverse=True)
    # One alone may start in any case: what it does then is told for each start.
    assert count == 1 or sum(largest[:count]) <= room
    assert count == len(sizes) or sum(largest[: count + 1]) > room
