"""A card that a variable leaves out is marked wherever another interface lists it."""

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Hardware, Problem
from tsuku_llm.probe.amd import vulkan_uuid
from tsuku_llm.probe.visible import given_to, is_limited_elsewhere, mark_hidden, only_given

MAKERS = {"cuda": 0x10DE, "rocm": 0x1002, "level_zero": 0x8086}
VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "ROCR_VISIBLE_DEVICES",
    "level_zero": "ZE_AFFINITY_MASK",
}


def api(name: str, maker: int, *uuids: str | None) -> Api:
    gpus = tuple(
        Gpu(name, index, f"card {uuid}", GpuKind.DISCRETE, 8 << 30, maker, uuid=uuid)
        for index, uuid in enumerate(uuids)
    )
    return Api(name, ApiState.OK, "a library", gpus=gpus)


def hidden(apis: tuple[Api, ...], name: str = "vulkan") -> list[str | None]:
    (found,) = [each for each in apis if each.name == name]
    return [gpu.hidden_by for gpu in found.gpus]


@pytest.mark.parametrize("name", MAKERS)
def test_only_the_card_that_was_given_is_not_marked(name: str) -> None:
    variable, maker = VARIABLES[name], MAKERS[name]
    apis = (api(name, maker, "b"), api("vulkan", maker, "a", "b"))
    assert hidden(mark_hidden(apis, {variable: "1"})) == [variable, None]
    assert hidden(mark_hidden(apis, {variable: "GPU-b"})) == [variable, None]
    assert hidden(mark_hidden(apis, {})) == [None, None]
    both = {variable: "1", "GGML_VK_VISIBLE_DEVICES": "0,1"}
    assert hidden(mark_hidden(apis, both)) == [None, None], "the build's own variable decides"


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_a_value_that_gives_nothing_marks_every_card(value: str) -> None:
    none = Api("cuda", ApiState.FAILED, "a library", problem=Problem("cuda-hidden", "", ""))
    apis = (none, api("vulkan", 0x10DE, "a"))
    assert hidden(mark_hidden(apis, {"CUDA_VISIBLE_DEVICES": value})) == ["CUDA_VISIBLE_DEVICES"]


def test_ids_that_cannot_be_compared_mark_all_if_there_are_more() -> None:
    apis = (api("cuda", 0x10DE, "x"), api("vulkan", 0x10DE, None, None))
    assert hidden(mark_hidden(apis, {"CUDA_VISIBLE_DEVICES": "0"})) == ["CUDA_VISIBLE_DEVICES"] * 2


def test_as_many_cards_as_were_given_are_the_same() -> None:
    apis = (api("cuda", 0x10DE, "x"), api("vulkan", 0x10DE, None))
    assert hidden(mark_hidden(apis, {"CUDA_VISIBLE_DEVICES": "0"})) == [None]


def test_without_the_makers_interface_the_value_is_counted() -> None:
    absent = Api("rocm", ApiState.ABSENT)
    one, two = api("vulkan", 0x1002, "a"), api("vulkan", 0x1002, "a", "b")
    variables = {"HIP_VISIBLE_DEVICES": "0"}
    assert hidden(mark_hidden((absent, one), variables)) == [None]
    assert hidden(mark_hidden((absent, two), variables)) == ["HIP_VISIBLE_DEVICES"] * 2


@pytest.mark.parametrize("value", ["*:gpu", "level_zero:*", "all"])
def test_a_value_that_gives_everything_marks_nothing(value: str) -> None:
    apis = (api("level_zero", 0x8086, "a"), api("vulkan", 0x8086, "a", "b"))
    assert hidden(mark_hidden(apis, {"ONEAPI_DEVICE_SELECTOR": value})) == [None, None]


def test_cards_of_other_makers_are_not_marked() -> None:
    vulkan = api("vulkan", 0x10DE, "a", "b")
    mixed = replace(vulkan, gpus=(*vulkan.gpus, *api("vulkan", 0x8086, "i").gpus))
    apis = (api("cuda", 0x10DE, "b"), mixed)
    found = hidden(mark_hidden(apis, {"CUDA_VISIBLE_DEVICES": "1"}))
    assert found == ["CUDA_VISIBLE_DEVICES", None, None]


def test_vulkans_variable_limits_the_other_interfaces() -> None:
    apis = (api("cuda", 0x10DE, "b", "a"), api("vulkan", 0x10DE, "a", "b"))
    name = "GGML_VK_VISIBLE_DEVICES"
    assert hidden(mark_hidden(apis, {name: "1"}), "cuda") == [None, name], "b is Vulkan's second"
    assert hidden(mark_hidden(apis, {name: "0,1"}), "cuda") == [None, None]
    assert hidden(mark_hidden(apis, {name: ""}), "cuda") == [name, name]
    assert (
        hidden(mark_hidden(apis, {name: "1", "CUDA_VISIBLE_DEVICES": "0,1"}), "cuda") == [None] * 2
    )


LISTED = {
    "": "",
    "x": "",
    "7": "",
    "-1": "",
    "5": "",
    "0,7": "",
    "7,0": "",
    "0": "a",
    "1": "b",
    " 1": "b",
    "0,x": "a",
    "0x1": "a",
    "+1": "b",
    "1;0": "b",
    "-0": "a",
    "0 1": "ab",
    "1,0": "ab",
    "0,,1": "ab",
    ",1": "b",
    "0,0": "a",
}
"""The cards that a Vulkan build lists by the variable.

Two H200s did so (b10434, driver 580.159.04). The rest is as ``ggml_vk_instance_init`` reads it
(ggml-vulkan.cpp, b11434): with a C++ stream, in which commas have become blanks.
"""


@pytest.mark.parametrize("value", LISTED)
def test_vulkans_variable_leaves_a_build_what_the_build_reads_of_it(value: str) -> None:
    name = "GGML_VK_VISIBLE_DEVICES"
    (found,) = mark_hidden((api("vulkan", 0x10DE, "a", "b"),), {name: value})
    assert "".join(str(gpu.uuid) for gpu in found.gpus if not gpu.hidden_by) == LISTED[value]
    assert (found.problem.slug if found.problem else "") == (
        "" if LISTED[value] else "vulkan-hidden"
    )
    if found.problem:
        assert f"{name}={value!r}" in found.problem.text


@hypothesis.given(st.text(alphabet="0123 ,+-x\u0660", max_size=12))
def test_no_value_of_vulkans_variable_ends_the_probe(value: str) -> None:
    (found,) = mark_hidden((api("vulkan", 0x10DE, "a"),), {"GGML_VK_VISIBLE_DEVICES": value})
    assert bool(found.problem) is bool(found.gpus[0].hidden_by)


def test_a_maker_that_vulkan_does_not_list_is_not_limited_by_it() -> None:
    """NVIDIA's part for Vulkan is missing; the variable chose among two cards of AMD."""
    apis = (api("cuda", 0x10DE, "n"), api("vulkan", 0x1002, "a", "b"))
    assert hidden(mark_hidden(apis, {"GGML_VK_VISIBLE_DEVICES": "1"}), "cuda") == [None]


def test_a_part_of_a_card_gives_no_card_to_another_interface() -> None:
    """A MIG instance: its neighbours on the card belong to other users."""
    apis = (api("cuda", 0x10DE, "a"), api("vulkan", 0x10DE, "a"))
    variables = {"CUDA_VISIBLE_DEVICES": "MIG-0f1e2d3c-0000-0000-0000-000000000000"}
    assert hidden(mark_hidden(apis, variables)) == ["CUDA_VISIBLE_DEVICES"]


def test_cards_of_amd_are_the_same_by_their_pci_address() -> None:
    """Radv's UUID of 0000:03:00.0, as vulkaninfo shows it."""
    card = vulkan_uuid("0000:03:00.0")
    assert card == "00000000030000000000000000000000"
    integrated = vulkan_uuid("0000:C6:00.0")
    apis = (api("rocm", 0x1002, card), api("vulkan", 0x1002, integrated, card))
    name = "ROCR_VISIBLE_DEVICES"
    assert hidden(mark_hidden(apis, {name: "0"})) == [name, None]
    assert vulkan_uuid("03:00.0") is vulkan_uuid(None) is None


# --- what a build gets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "variables", "limited"),
    [
        ("vulkan", {}, False),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "1"}, True),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "all"}, False),
        ("vulkan", {"CUDA_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": "0"}, False),
        ("vulkan", {"VK_DRIVER_FILES": "/x"}, False),
        ("vulkan", {"ZE_AFFINITY_MASK": "0"}, True),
        ("cuda", {"GGML_VK_VISIBLE_DEVICES": "0"}, True),
        ("cuda", {"HIP_VISIBLE_DEVICES": "0"}, False),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0", "GGML_VK_VISIBLE_DEVICES": "0"}, False),
        ("rocm", {"GGML_VK_VISIBLE_DEVICES": "0"}, True),
        ("opencl", {"ZE_AFFINITY_MASK": "0"}, True),
        ("opencl", {"ZE_AFFINITY_MASK": "0", "GGML_OPENCL_PLATFORM": "0"}, False),
        ("openvino", {"ZE_AFFINITY_MASK": "0"}, False),
        ("vulkan", {"SLURM_JOB_GPUS": "3"}, False),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0"}, False),
    ],
)
def test_a_build_is_limited_by_the_variables_of_other_interfaces(
    backend: str, variables: dict[str, str], limited: bool
) -> None:
    assert is_limited_elsewhere(backend, variables) is limited


def machine(variables: dict[str, str], *apis: Api) -> Hardware:
    return Hardware("linux", "amd64", apis=mark_hidden(apis, variables))


def test_a_build_gets_the_numbers_of_the_cards_that_were_given() -> None:
    cuda, vulkan = api("cuda", 0x10DE, "b"), api("vulkan", 0x10DE, "a", "b", "c")
    for value, given in (("1", "1"), ("", "")):
        own = cuda if value else replace(cuda, gpus=(), problem=Problem("cuda-hidden", "", ""))
        seen = machine({"CUDA_VISIBLE_DEVICES": value}, own, vulkan)
        assert given_to("vulkan", seen) == ("GGML_VK_VISIBLE_DEVICES", given)
    both = api("cuda", 0x10DE, "a", "b", "c")
    seen = machine({"GGML_VK_VISIBLE_DEVICES": "2,0"}, both, vulkan)
    assert given_to("cuda", seen) == ("CUDA_VISIBLE_DEVICES", "0,2")
    assert given_to("cuda", machine({"GGML_VK_VISIBLE_DEVICES": ""}, both, vulkan)) == (
        *("CUDA_VISIBLE_DEVICES", "-1"),
    )
    assert given_to("vulkan", machine({}, both, vulkan)) is None


def test_an_opencl_build_gets_the_card_that_was_given() -> None:
    """By the number among the devices of all platforms, as ggml counts them."""
    level_zero, opencl = api("level_zero", 0x8086, "b"), api("opencl", 0x8086, "a", "b")
    given = {"ZE_AFFINITY_MASK": "1"}
    assert only_given("opencl", machine(given, level_zero, opencl), given) == {
        "GGML_OPENCL_DEVICE": "1"
    }
    nothing = {"ZE_AFFINITY_MASK": ""}
    none = replace(level_zero, gpus=())
    assert only_given("opencl", machine(nothing, none, opencl), nothing) == {
        "GGML_OPENCL_DEVICE": "none"
    }


def test_an_integrated_gpu_and_a_second_driver_are_not_added() -> None:
    """The variable names every device for ggml: also those that it leaves out by itself."""
    cards = api("vulkan", 0x10DE, "a", "b", "b")
    integrated = replace(
        cards.gpus[0], uuid="i", vendor_id=0x8086, kind=GpuKind.INTEGRATED, index=3
    )
    vulkan = replace(cards, gpus=(*cards.gpus, integrated))
    seen = machine({"CUDA_VISIBLE_DEVICES": "1"}, api("cuda", 0x10DE, "b"), vulkan)
    assert given_to("vulkan", seen) == ("GGML_VK_VISIBLE_DEVICES", "1")
