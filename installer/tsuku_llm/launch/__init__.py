"""The start of a build's server: plan it, check it, run it, explain why it did not start.

This package does not know how the build was chosen or where it came from.
"""

from tsuku_llm import lazily

# Only type checkers read these imports. At run time each name is imported on first use, as
# a start must not wait for modules that it does not need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tsuku_llm.launch.becoming import replace
    from tsuku_llm.launch.checking import (
        GATE_LIMIT,
        GateReport,
        Listing,
        gate,
        hiding_variables,
        list_devices,
        no_device,
    )
    from tsuku_llm.launch.devices import ListedDevice, own_devices, parse_devices
    from tsuku_llm.launch.diagnosis import CPU_OVERRIDE, Diagnosis, diagnose
    from tsuku_llm.launch.fingerprint import driver_fingerprint
    from tsuku_llm.launch.health import Address, address_of
    from tsuku_llm.launch.leash import Leash
    from tsuku_llm.launch.planning import Build, Plan, environment, plan, refusal_in
    from tsuku_llm.launch.report import FallenBack, Signal, Sink, StartReport, Verdict
    from tsuku_llm.launch.run import Observer, supervise
    from tsuku_llm.launch.speed import SPEED_CONTEXT, Speed, measure
    from tsuku_llm.launch.tool import plan_tool, require_no_plugins
    from tsuku_llm.launch.watch import Start, Watch

__all__ = [
    "CPU_OVERRIDE",
    "GATE_LIMIT",
    "SPEED_CONTEXT",
    "Address",
    "Build",
    "Diagnosis",
    "FallenBack",
    "GateReport",
    "Leash",
    "ListedDevice",
    "Listing",
    "Observer",
    "Plan",
    "Signal",
    "Sink",
    "Speed",
    "Start",
    "StartReport",
    "Verdict",
    "Watch",
    "address_of",
    "diagnose",
    "driver_fingerprint",
    "environment",
    "gate",
    "hiding_variables",
    "list_devices",
    "measure",
    "no_device",
    "own_devices",
    "parse_devices",
    "plan",
    "plan_tool",
    "refusal_in",
    "replace",
    "require_no_plugins",
    "supervise",
]

__getattr__ = lazily.loader(
    __name__,
    {
        "becoming": ("replace",),
        "checking": (
            "GATE_LIMIT",
            "GateReport",
            "Listing",
            "gate",
            "hiding_variables",
            "list_devices",
            "no_device",
        ),
        "devices": ("ListedDevice", "own_devices", "parse_devices"),
        "diagnosis": ("CPU_OVERRIDE", "Diagnosis", "diagnose"),
        "fingerprint": ("driver_fingerprint",),
        "health": ("Address", "address_of"),
        "leash": ("Leash",),
        "planning": ("Build", "Plan", "environment", "plan", "refusal_in"),
        "report": ("FallenBack", "Signal", "Sink", "StartReport", "Verdict"),
        "run": ("Observer", "supervise"),
        "speed": ("SPEED_CONTEXT", "Speed", "measure"),
        "tool": ("plan_tool", "require_no_plugins"),
        "watch": ("Start", "Watch"),
    },
)
