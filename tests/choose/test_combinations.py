"""Builds of two makers in one tree: which are made, when they are chosen, and offered."""

from dataclasses import replace
from typing import Any

import pytest
from support.machines import CUDA_12, cuda, linux_variants, machine, release, rocm, variant, vulkan

from tsuku_llm.choose.combinations import combinations
from tsuku_llm.choose.selection import CombinedOffer, Request, Selection, select, variant_named
from tsuku_llm.ground.errors import UnknownRequest
from tsuku_llm.machine.backends import AMD, INTEL, NVIDIA, facts_of, meaning, names_parts, parts_of
from tsuku_llm.machine.hardware import Api, Gpu, GpuKind, Hardware

GB = 1 << 30
NV = Gpu("vulkan", 0, "NVIDIA X", GpuKind.DISCRETE, 24 * GB, NVIDIA, api_version="1.3")
RADEON = Gpu("vulkan", 1, "AMD Radeon Y", GpuKind.DISCRETE, 16 * GB, AMD, api_version="1.3")


def with_vulkan(*gpus: Gpu, api: Api | None = None) -> Hardware:
    return machine(api or cuda(), replace(vulkan(), gpus=gpus))


BOTH = with_vulkan(NV, RADEON)


def chosen(hardware: Hardware = BOTH, backend: str = "auto", **changes: Any) -> Selection:
    return select(release(), hardware, Request(backend, **changes))


def names(selection: Selection) -> list[str]:
    return [each.variant.name for each in selection.compatible]


def test_every_build_of_a_maker_is_combined_with_the_vulkan_build() -> None:
    platform = release().platforms["linux-amd64"]
    found = [each.name for each in combinations(platform)]
    assert found == ["cuda-13.4+vulkan", "cuda-12.8+vulkan", "rocm-10.0+vulkan"]
    one = variant_named(platform, "cuda-12.8+vulkan")
    assert one
    assert [part.name for part in one.parts] == ["cuda-12.8", "vulkan"]
    assert variant_named(platform, "vulkan+cpu") is None


def test_builds_of_two_servers_are_not_combined() -> None:
    variants = linux_variants()
    variants["vulkan"]["server"] = "bin/llama-server"
    platform = release(variants).platforms["linux-amd64"]
    assert not list(combinations(platform))


def test_a_name_of_a_release_file_is_never_that_of_a_combined_build() -> None:
    """A publisher may call a build of both backends so."""
    variants = linux_variants()
    variants["cuda-13.4+vulkan"] = variants["vulkan"]
    platform = release(variants).platforms["linux-amd64"]
    found = [each.name for each in combinations(platform)]
    assert found == ["cuda-12.8+vulkan", "rocm-10.0+vulkan"]
    signed = variant_named(platform, "cuda-13.4+vulkan")
    assert signed
    assert not signed.parts


def test_nothing_is_combined_unasked_and_it_is_offered() -> None:
    found = chosen()
    assert not any("+" in name for name in names(found))
    assert found.combined == CombinedOffer("cuda-13.4+vulkan", ("NVIDIA X",), ("AMD Radeon Y",))
    assert chosen(backend="cpu").combined is None
    assert chosen(backend="vulkan").combined is None


def test_a_combined_candidate_tells_the_cards_of_both_makers() -> None:
    best = chosen(combine=True).selected
    assert best.device == "NVIDIA X and AMD Radeon Y"
    assert chosen().selected.device == "NVIDIA X"
    # Where it adds no card, it is told as any build.
    assert chosen(with_vulkan(NV), backend="cuda+vulkan").selected.device == "NVIDIA X"


def test_with_the_setting_it_comes_first_and_the_parts_follow() -> None:
    found = chosen(combine=True, prefer="native")
    assert names(found)[:3] == ["cuda-13.4+vulkan", "cuda-12.8+vulkan", "cuda-13.4"]
    assert found.combined is None
    assert names(chosen(combine=True, backend="cuda")) == ["cuda-13.4", "cuda-12.8"]


@pytest.mark.parametrize(
    "hardware",
    [
        with_vulkan(NV),
        with_vulkan(NV, replace(RADEON, kind=GpuKind.INTEGRATED)),
        with_vulkan(NV, replace(RADEON, memory=1 * GB)),
        with_vulkan(NV, replace(NV, index=1)),
        with_vulkan(NV, replace(RADEON, vendor_id=None, name="a card")),
        # The server's list has no numbers of makers: a start would leave these cards out.
        with_vulkan(NV, replace(RADEON, name="Vega 10 XL")),
        with_vulkan(NV, replace(RADEON, vendor_id=0x1ED5, name="MTT S80")),
        with_vulkan(NV, replace(RADEON, storage_16bit=False)),
        machine(replace(vulkan(), gpus=(NV, RADEON))),
        machine(cuda()),
    ],
    ids=[
        "one",
        "apu",
        "tiny",
        "same",
        "unknown",
        "nameless",
        "other",
        "old",
        "no CUDA",
        "no Vulkan",
    ],
)
def test_where_it_adds_no_card_it_is_neither_chosen_nor_offered(hardware: Hardware) -> None:
    assert chosen(hardware).combined is None
    assert not any("+" in name for name in names(chosen(hardware, combine=True)))


def test_a_card_that_two_drivers_list_is_gained_once_and_two_equal_cards_twice() -> None:
    of_mesa = replace(RADEON, name="AMD Radeon Y (RADV)", uuid="a")
    drivers = with_vulkan(NV, of_mesa, replace(RADEON, index=2, uuid="a"))
    assert chosen(drivers).combined == CombinedOffer(
        "cuda-13.4+vulkan", ("NVIDIA X",), ("AMD Radeon Y (RADV)",)
    )
    for uuids in (("a", "b"), (None, None)):
        equal = [replace(RADEON, index=at, uuid=uuid) for at, uuid in enumerate(uuids, 1)]
        offer = chosen(with_vulkan(NV, *equal)).combined
        assert offer
        assert offer.others == ("AMD Radeon Y", "AMD Radeon Y")


def test_a_radeon_with_rocm_is_joined_by_a_card_of_intel() -> None:
    arc = replace(RADEON, name="Intel(R) Arc(tm) A770 Graphics (DG2)", vendor_id=INTEL)
    found = chosen(with_vulkan(arc, RADEON, api=rocm("gfx1100")), combine=True)
    assert names(found)[0] == "rocm-10.0+vulkan"


@pytest.mark.parametrize(
    "word", ["cuda+vulkan", "vulkan+cuda", "CUDA+VK", "cuda-12.8+vulkan", "vulkan+cuda-12.8"]
)
def test_it_is_taken_by_its_name_also_for_one_maker(word: str) -> None:
    found = names(chosen(with_vulkan(NV), backend=word))
    assert found
    assert set(found) <= {"cuda-13.4+vulkan", "cuda-12.8+vulkan"}
    assert "12.8" not in word or found == ["cuda-12.8+vulkan"]


def test_the_requirements_of_both_parts_count() -> None:
    found = chosen(machine(cuda(), libc=None), backend="cuda+vulkan")
    assert not found.compatible
    reasons = {each.variant.name: each.reason.text for each in found.rejected}
    assert reasons["cuda-12.8+vulkan"].startswith("vulkan: ")
    found = chosen(machine(vulkan()), backend="cuda+vulkan")
    reasons = {each.variant.name: each.reason.text for each in found.rejected}
    assert reasons["cuda-12.8+vulkan"].startswith("cuda-12.8: ")


def test_a_release_without_one_of_the_builds_says_which() -> None:
    only = release({"cuda-12.8": variant("cuda", {"cuda": CUDA_12}), "cpu": variant("cpu", {})})
    with pytest.raises(UnknownRequest, match="no vulkan build to combine") as caught:
        select(only, BOTH, Request("cuda+vulkan"))
    assert caught.value.hint.endswith(": tsuku-llm install --backend cuda")
    for word in ("vulkan+cpu", "cuda+cuda", "cuda+vulkan+rocm"):
        with pytest.raises(UnknownRequest, match="cannot be combined") as caught:
            select(release(), BOTH, Request(word))
        assert caught.value.hint.endswith(": tsuku-llm install --backend cuda-13.4+vulkan")
    with pytest.raises(UnknownRequest) as caught:
        select(release(), BOTH, Request("cuda+vulcan"))
    assert caught.value.hint == "did you mean cuda+vulkan?"
    for word in ("cuda+nonsense", "+", "cuda+", "cuda+vulkan" + "+vulkan" * 50):
        with pytest.raises(UnknownRequest):
            select(release(), BOTH, Request(word))


def test_a_combined_row_has_the_facts_of_both_backends() -> None:
    row = facts_of("cuda+vulkan")
    assert row.title == "CUDA and Vulkan"
    assert row.device_prefixes == ("cuda", "vulkan")
    assert {"CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"} <= set(row.hiding_variables)
    assert {"nvidia-compute", "nvidia-gl", "mesa"} == set(row.caches)
    assert meaning("vk+HIP") == "rocm+vulkan"
    assert parts_of("cuda") == ("cuda",)
    assert names_parts("vulkan+cuda", [("cuda-12.8", "cuda"), ("vulkan", "vulkan")])
    assert not names_parts("cuda+cuda", [("cuda-12.8", "cuda"), ("vulkan", "vulkan")])
