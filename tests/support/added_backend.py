"""A program whose table of backends has one row more. Run as a process of its own.

The row is added to the table's source before another module of the package is loaded. Then every
part that reads the table is asked about the new backend. No other module is changed.
"""

# ruff: noqa: PLC0415 - the modules are loaded after the table has changed

import sys
import types
from importlib.util import find_spec
from pathlib import Path

from tsuku_llm import machine
from tsuku_llm.ground.own_name import SUDO

ROW = """
    BackendFacts(
        "npu",
        api="npu_driver",
        api_label="the NPU driver",
        api_fix="install libnpu1",
        vendors=frozenset({0x1234}),
        device_prefixes=("npu",),
        plugin="npux",
        hiding_variables=("HIDE_NPU",),
        first_look="see whether npu-info lists the NPU",
        packages={"libnpu": {"debian": "libnpu1"}},
        library_fixes={"libnpurt": "install the NPU toolkit"},
    ),
"""


def add_the_row() -> None:
    """Put the longer table where every module of the package imports it from."""
    spec = find_spec("tsuku_llm.machine.backends")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    for old, new in (('"metal"]', '"metal", "npu"]'), ("TABLE = (\n", f"TABLE = ({ROW}")):
        assert source.count(old) == 1
        source = source.replace(old, new)
    longer = types.ModuleType("tsuku_llm.machine.backends")
    sys.modules[longer.__name__] = longer
    exec(compile(source, "longer", "exec"), longer.__dict__)  # noqa: S102
    machine.backends = longer


def ask_every_part() -> None:
    """Check what each part says about the new backend."""
    from support.machines import machine, release, variant

    from tsuku_llm.choose.chain.judging import driver_links
    from tsuku_llm.choose.chain.links import Subject
    from tsuku_llm.choose.selection import Request, select
    from tsuku_llm.config.keys import parse_preference
    from tsuku_llm.launch.plan.devices import backend_named, own_devices, parse_devices
    from tsuku_llm.machine.backends import facts_of
    from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind
    from tsuku_llm.machine.packages import package_of

    # The settings, the manifest's parser and the choice.
    assert parse_preference("npu,cpu") == ("npu", "cpu")
    offered = release({"npu": variant("npu", {}), "cpu": variant("cpu", {})})
    card = Gpu("npu_driver", 0, "NPU 9", GpuKind.DISCRETE, vendor_id=0x1234)
    here = machine(Api("npu_driver", ApiState.OK, gpus=(card,)))
    chosen = select(offered, here, Request())
    assert str(chosen.selected.variant.backend) == "npu"
    assert "npu" in chosen.detected

    # The refusal, and the links of the driver's chain.
    absent = Api("npu_driver", ApiState.ABSENT)
    (refused,) = select(offered, machine(absent), Request()).rejected
    assert refused.reason.text == "the NPU driver is not installed"
    links = driver_links(Subject("npu", "npu", None), machine(absent), absent)
    assert any(each.fault and "install libnpu1" in each.fault.fix for each in links)

    # The server's list of devices, and a failed start.
    listed = parse_devices("Available devices:\n  NPU0: NPU 9\n  CUDA0: a card\n")
    assert listed
    assert [each.name for each in own_devices(listed, "npu")] == ["NPU0"]
    assert backend_named("NPU0") == "npu"
    assert package_of("libnpu.so.1", "debian") == f"run: {SUDO}apt install libnpu1"
    assert package_of("libnpurt.so", "debian") == "install the NPU toolkit"
    assert facts_of("npu").plugin == "npux"


if __name__ == "__main__":
    add_the_row()
    ask_every_part()
    print("every part knows the new backend")  # noqa: T201
