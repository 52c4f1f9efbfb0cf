"""The cheapest way to a GPU that is not used, over all backends."""

from dataclasses import replace

from support import machines

from tsuku_llm.choose.chain.ways import Way, ways_to_gpus
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, GpuKind, Hardware, Libc
from tsuku_llm.machine.places import Kind, MachinePlace

CARD = Evidence("PCI 0000:01:00.0", "10de:2684 (driver nvidia)")
DEBIAN = MachinePlace(systems=("debian",))


def ways(hardware: Hardware) -> tuple[Way, ...]:
    return ways_to_gpus(select(machines.release(), hardware, Request()), hardware)


def old_system(*apis: Api, **changes: object) -> Hardware:
    """A system whose glibc has no CUDA build, and that has packages for Vulkan."""
    found = machines.machine(*apis, libc=Libc("glibc", "2.36"), packages="debian", place=DEBIAN)
    return replace(found, evidence=(CARD,), **changes)  # type: ignore[arg-type]


def test_a_package_comes_before_another_system() -> None:
    (way,) = ways(old_system(machines.cuda(), Api("vulkan", ApiState.ABSENT)))
    assert (way.gpu, way.backend) == ("NVIDIA X", "vulkan")
    assert "apt install libvulkan1" in way.fix
    assert "nvidia-vulkan-icd" in way.fix, "nothing shows NVIDIA's part for Vulkan"
    assert way.told.endswith("install")


def test_in_a_container_nvidias_part_is_passed_in() -> None:
    docker = MachinePlace(Kind.DOCKER, systems=("debian",))
    (way,) = ways(old_system(machines.cuda(), Api("vulkan", ApiState.ABSENT), place=docker))
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in way.fix


def test_a_card_that_is_used_needs_no_way() -> None:
    assert not ways(old_system(machines.vulkan(GpuKind.DISCRETE)))


def test_a_newer_system_is_told_if_nothing_is_cheaper() -> None:
    """Vulkan lists the card, and cannot use it."""
    (gpu,) = machines.vulkan(GpuKind.DISCRETE).gpus
    small = replace(gpu, name="NVIDIA X", vendor_id=0x10DE, shared_memory=1024)
    listed = Api("vulkan", ApiState.OK, "libvulkan.so.1", "1.3", gpus=(small,))
    (way,) = ways(old_system(machines.cuda(), listed))
    assert way.backend == "cuda"
    assert "newer release" in way.fix


def test_a_card_that_nothing_helps_has_no_way() -> None:
    old = machines.cuda(capability="3.0")
    small = replace(
        machines.vulkan(GpuKind.DISCRETE).gpus[0], vendor_id=0x10DE, storage_16bit=False
    )
    listed = Api("vulkan", ApiState.OK, "libvulkan.so.1", "1.3", gpus=(small,))
    assert not ways(machines.machine(old, listed))
