"""What a receipt says about temporary states, and when they are over."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import machines
from support.stored import make_receipt

from tsuku_llm.machine.hardware import Api, ApiState, Hardware, Problem
from tsuku_llm.steps.choosing.temporary import hiding, over, withheld
from tsuku_llm.steps.install.build_version import hardware_facts
from tsuku_llm.store.records.receipt import Receipt

REBOOT = Problem("driver-updated-reboot", "the driver was updated", "restart", transient=True)
SLOW = Problem("driver-timed-out", "the driver did not answer", "wait", transient=True)
LASTING = Problem("gpu-permission", "this user may not open it", "join a group")


def broken(name: str, problem: Problem, state: ApiState = ApiState.FAILED) -> Api:
    return Api(name, state, "a library", problem=problem)


def chosen_on(hardware: Hardware, **changes: Any) -> Receipt:
    """The receipt of a CPU build, whose other variants were refused for the APIs' problems."""
    reasons = {api.name: api.problem.text for api in hardware.apis if api.problem}
    usual = {"backend": "cpu", "requested": "auto", "reasons": reasons}
    return make_receipt(hardware=hardware_facts(hardware), **{**usual, **changes})


def test_only_temporary_problems_count() -> None:
    receipt = chosen_on(machines.machine(broken("cuda", REBOOT), broken("vulkan", LASTING)))
    (state,) = withheld(receipt, "auto")
    assert (state.api, state.slug, state.text, state.fix) == (
        "cuda",
        "driver-updated-reboot",
        "the driver was updated",
        "restart",
    )
    assert not state.waits


def test_a_driver_that_did_not_answer_may_make_the_next_question_wait() -> None:
    receipt = chosen_on(machines.machine(broken("cuda", SLOW, ApiState.TIMED_OUT)))
    (state,) = withheld(receipt, "auto")
    assert state.waits


def test_a_hanging_driver_beside_a_gpu_that_works_is_left_alone() -> None:
    both = machines.machine(broken("vulkan", SLOW, ApiState.TIMED_OUT), broken("rocm", REBOOT))
    receipt = chosen_on(both, backend="cuda", variant="cuda-13.4")
    (state,) = withheld(receipt, "auto")
    assert state.api == "rocm"


def test_a_named_backend_is_no_temporary_choice() -> None:
    receipt = chosen_on(machines.machine(broken("cuda", REBOOT)))
    assert withheld(receipt, "cpu") == ()
    assert withheld(receipt._replace(requested="cpu"), "auto") == ()
    assert withheld(receipt._replace(requested="cuda"), "cuda") == ()
    assert withheld(receipt._replace(requested="gpu"), "auto")
    # The maker of a GPU is not a backend: the machine chooses among the maker's.
    assert withheld(receipt._replace(requested="nvidia"), "nvidia")


def test_a_driver_that_no_variant_wanted_kept_nothing_away() -> None:
    receipt = chosen_on(machines.machine(broken("opencl", REBOOT)), reasons={"cuda": "no driver"})
    assert withheld(receipt, "auto") == ()


def test_a_state_is_over_when_its_driver_has_another_problem_or_none() -> None:
    receipt = chosen_on(machines.machine(broken("cuda", REBOOT)))
    states = withheld(receipt, "auto")
    assert over(states, machines.machine(broken("cuda", REBOOT)), {}) == ()
    assert over(states, machines.machine(machines.cuda()), {}) == states
    assert over(states, machines.machine(), {}) == states
    # The same problem of another driver is another state.
    assert over(states, machines.machine(broken("vulkan", REBOOT)), {}) == states


def test_a_variable_counts_for_a_cpu_build_until_it_changes() -> None:
    receipt = chosen_on(machines.machine(), hidden_by=("CUDA_VISIBLE_DEVICES=",))
    states = withheld(receipt, "auto")
    assert [each.text for each in states] == [
        "CUDA_VISIBLE_DEVICES='' was set, which can hide a GPU"
    ]
    assert over(states, machines.machine(), {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert over(states, machines.machine(), {"CUDA_VISIBLE_DEVICES": "0"}) == states
    assert over(states, machines.machine(), {}) == states
    assert withheld(receipt._replace(backend="vulkan"), "auto") == ()


def test_the_variables_of_every_backend_can_hide_a_gpu() -> None:
    environ = {
        "HIP_VISIBLE_DEVICES": "-1",
        "GGML_VK_VISIBLE_DEVICES": "",
        "ONEAPI_DEVICE_SELECTOR": "opencl:cpu",
        "HOME": "/home/user",
    }
    assert hiding(environ) == (
        "GGML_VK_VISIBLE_DEVICES=",
        "HIP_VISIBLE_DEVICES=-1",
        "ONEAPI_DEVICE_SELECTOR=opencl:cpu",
    )


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["apis", "problems", "problem", "transient", "state", "text", "slug"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["apis", "problems", "os"]), JUNK, max_size=3))
def test_any_hardware_in_a_receipt_can_be_read(hardware: dict[str, Any]) -> None:
    """A receipt's hardware is only known to be an object: an old or a newer version wrote it."""
    plain = json.loads(json.dumps(hardware))
    for state in withheld(chosen_on(machines.machine())._replace(hardware=plain), "auto"):
        assert isinstance(state.text, str)
