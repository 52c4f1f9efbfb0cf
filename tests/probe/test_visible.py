"""A card that a variable leaves out is marked wherever another interface lists it."""

from dataclasses import replace

import pytest

from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Problem
from tsuku_llm.probe.visible import mark_hidden

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
    assert hidden(mark_hidden(apis, {variable: "1", "GGML_VK_VISIBLE_DEVICES": "1"})) == [None] * 2


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
