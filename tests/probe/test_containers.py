"""What runs this container, and which flag would give it a GPU."""

import json
from pathlib import Path

import pytest
from support.fake_roots import with_pci
from support.stub_drivers import StubDrivers

from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.probe import probe
from tsuku_llm.probe.facts.containers import Container, Runtime, collect

MARKS = {
    Runtime.DOCKER: "/.dockerenv",
    Runtime.PODMAN: "/run/.containerenv",
}
YAML = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
"""


def touch(root: Path, name: str, text: str = "") -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def in_container(stubs: StubDrivers, root: Path, runtime: Runtime, **variables: str) -> Hardware:
    """Probe a container that sees an NVIDIA card on the bus, and was given no driver."""
    if runtime in MARKS:
        touch(root, MARKS[runtime])
    if runtime is Runtime.KUBERNETES:
        variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    if runtime is Runtime.OTHER:
        variables["container"] = "lxc"
    host = stubs.only(root=with_pci(root))
    return probe(LocalHost(Path(host._root), {**host._environ, **variables}), 5.0)


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        (Runtime.DOCKER, ["--gpus all", "NVIDIA Container Toolkit"]),
        (Runtime.PODMAN, ["--device nvidia.com/gpu=all", "nvidia-ctk cdi generate"]),
        (Runtime.KUBERNETES, ["nvidia.com/gpu: 1", "device plugin"]),
        (Runtime.OTHER, ["--gpus all", "--device nvidia.com/gpu=all"]),
    ],
)
def test_the_fix_is_the_flag_of_what_runs_the_container(
    stubs: StubDrivers, tmp_path: Path, runtime: Runtime, words: list[str]
) -> None:
    found = in_container(stubs, tmp_path, runtime)
    assert found.container
    (problem,) = [each for each in found.all_problems if each.slug == "container-without-gpu"]
    assert all(word in problem.fix for word in words)
    assert ("container", runtime.value) in [(fact.call, fact.result) for fact in found.evidence]


def test_kubernetes_counts_before_the_runtime_below_it(tmp_path: Path) -> None:
    touch(tmp_path, "/.dockerenv")
    host = LocalHost(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert collect(host).runtime is Runtime.KUBERNETES


def test_outside_of_containers_there_is_no_runtime_and_no_fact(tmp_path: Path) -> None:
    found = collect(LocalHost(tmp_path, {"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert found.runtime is Runtime.NONE
    assert found.evidence() == ()


def test_what_nvidias_toolkit_was_told_is_a_fact(stubs: StubDrivers, tmp_path: Path) -> None:
    found = in_container(stubs, tmp_path, Runtime.DOCKER, NVIDIA_VISIBLE_DEVICES="void")
    assert ("NVIDIA_VISIBLE_DEVICES", "void") in [(f.call, f.result) for f in found.evidence]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/etc/cdi/nvidia.yaml", YAML),
        ("/var/run/cdi/nvidia.json", json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"})),
        ("/etc/cdi/a.json", json.dumps({"kind": "nvidia.com/gpu", "devices": []}, indent=1)),
    ],
)
def test_the_kinds_of_cdi_devices_are_facts(tmp_path: Path, name: str, text: str) -> None:
    touch(tmp_path, name, text)
    assert collect(LocalHost(tmp_path, {})).cdi == ("nvidia.com/gpu",)


@pytest.mark.parametrize(
    "text", ["", "kind: [", "kind: x", "\0" * 70_000, "devices:\n- name: kind"]
)
def test_a_cdi_file_without_a_kind_is_no_fact(tmp_path: Path, text: str) -> None:
    touch(tmp_path, "/etc/cdi/broken.yaml", text)
    touch(tmp_path, "/etc/cdi/notes.txt", YAML)
    assert collect(LocalHost(tmp_path, {})).cdi == ()


def test_device_files_are_given_by_flags_or_by_a_plugin() -> None:
    docker, pod = Container(Runtime.DOCKER), Container(Runtime.KUBERNETES)
    assert "--device /dev/kfd --device /dev/dri" in docker.give_files(
        "/dev/kfd", "/dev/dri", plugin="amd.com/gpu"
    )
    assert "amd.com/gpu: 1" in pod.give_files("/dev/kfd", "/dev/dri", plugin="amd.com/gpu")


@pytest.mark.parametrize("runtime", [Runtime.DOCKER, Runtime.KUBERNETES, Runtime.OTHER])
def test_vulkan_needs_the_graphics_part_of_the_driver(runtime: Runtime) -> None:
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in Container(runtime).give_nvidia(graphics=True)
    assert "CAPABILITIES" not in Container(runtime).give_nvidia()
