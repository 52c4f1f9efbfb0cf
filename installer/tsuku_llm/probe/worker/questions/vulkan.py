"""Vulkan: its loader, its drivers' files, and the devices that they enumerate.

Structures and numbers: the Vulkan registry, vk.xml.
"""

# vk.xml documents the structures.

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_char, c_char_p, c_uint8, c_uint32, c_uint64, c_void_p

from .. import icd
from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION_1_0, VERSION_1_1, VERSION_1_2 = 1 << 22, 1 << 22 | 1 << 12, 1 << 22 | 2 << 12
SUCCESS, INCOMPLETE = 0, 5
SHARED_MEMORY, INVOCATIONS = 54, 58
"""Where maxComputeSharedMemorySize and maxComputeWorkGroupInvocations are, in units of 32 bits."""
DISCRETE = 2
FLOAT_16 = b"VK_KHR_shader_float16_int8"
"""The extension by which shaders compute with half precision; it is part of Vulkan 1.2."""
LIBRARIES = {
    "win32": ["vulkan-1.dll"],
    "darwin": ["libvulkan.1.dylib", "/opt/homebrew/lib/libvulkan.1.dylib", "libMoltenVK.dylib"],
}


class ApplicationInfo(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("name", c_char_p),
        ("version", c_uint32),
        ("engine", c_char_p),
        ("engine_version", c_uint32),
        ("api", c_uint32),
    )


class InstanceCreateInfo(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("application", POINTER(ApplicationInfo)),
        ("layer_count", c_uint32),
        ("layers", c_void_p),
        ("extension_count", c_uint32),
        ("extensions", POINTER(c_char_p)),
    )


class VkDeviceProperties(ctypes.Structure):
    _fields_ = (
        ("api", c_uint32),
        ("driver", c_uint32),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("type", c_uint32),
        ("name", c_char * 256),
        ("cache_uuid", c_uint8 * 16),
        ("aligned", c_uint64 * 0),  # the limits have 64-bit sizes among them
        # VkPhysicalDeviceLimits (504 bytes), then the sparse properties (20), and their padding.
        ("limits", c_uint32 * 132),
    )


class DriverProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("id", c_uint32),
        ("name", c_char * 256),
        ("info", c_char * 256),
        ("conformance", c_uint8 * 4),
    )


class IdProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("device_uuid", c_uint8 * 16),
        ("driver_uuid", c_uint8 * 16),
        ("device_luid", c_uint8 * 8),
        ("node_mask", c_uint32),
        ("luid_valid", c_uint32),
    )


class DeviceProperties2(ctypes.Structure):
    _fields_ = (("type", c_uint32), ("next", c_void_p), ("properties", VkDeviceProperties))


class Storage16Features(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("storage_buffer", c_uint32),
        ("uniform_buffer", c_uint32),
        ("push_constant", c_uint32),
        ("input_output", c_uint32),
    )


class Float16Features(ctypes.Structure):
    _fields_ = (("type", c_uint32), ("next", c_void_p), ("float_16", c_uint32), ("int_8", c_uint32))


class DeviceFeatures2(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("features", c_uint32 * 55),  # those of Vulkan 1.0, which we do not read
    )


class MemoryType(ctypes.Structure):
    _fields_ = (("flags", c_uint32), ("heap", c_uint32))


class MemoryHeap(ctypes.Structure):
    _fields_ = (("size", c_uint64), ("flags", c_uint32))


class VkMemoryProperties(ctypes.Structure):
    _fields_ = (
        ("type_count", c_uint32),
        ("types", MemoryType * 32),
        ("heap_count", c_uint32),
        ("heaps", MemoryHeap * 16),
    )


class ExtensionProperties(ctypes.Structure):
    _fields_ = (("name", c_char * 256), ("version", c_uint32))


def ask(channel: Channel, root: str) -> None:
    """Create an instance without layers, list its devices, then look at the drivers' files."""
    vulkan = channel.open(LIBRARIES.get(sys.platform, ["libvulkan.so.1"]))
    types = _ask_loader(channel, vulkan) if vulkan is not None else set()
    # From here on the answer of the loader is complete, whatever the files do.
    channel.answer("listed")
    if sys.platform == "linux":
        # A library that does not load explains why a device is missing. With a discrete GPU in
        # the list there is nothing to explain that would be worth the risk of loading it.
        load = vulkan is not None and DISCRETE not in types
        for fact in icd.drivers(root, load=load, before=channel.before):
            channel.answer("icd", **fact)


def _ask_loader(channel: Channel, vulkan: ctypes.CDLL) -> set[int]:
    """List the devices, and return their types."""
    version, instance, count = c_uint32(VERSION_1_0), c_void_p(), c_uint32()
    channel.call(
        vulkan,
        "vkEnumerateInstanceVersion",  # missing in a loader of Vulkan 1.0
        byref(version),
        tell=lambda: {"version": version.value},
    )
    # Without the patch number, and at most 1.2, the newest version whose structures are read here.
    api = min(version.value & ~0xFFF, VERSION_1_2)
    if channel.call(vulkan, "vkCreateInstance", byref(_instance(api)), None, byref(instance)) != 0:
        return set()
    name = "vkEnumeratePhysicalDevices"
    tell = lambda: {"count": count.value}
    if channel.call(vulkan, name, instance, byref(count), None, tell=tell) != 0 or not count.value:
        return set()
    devices = (c_void_p * count.value)()
    channel.before(name)
    code = vulkan.vkEnumeratePhysicalDevices(instance, byref(count), devices)
    if code not in (SUCCESS, INCOMPLETE):
        channel.answer(name, code=code)
        return set()
    types = set()
    for index in range(count.value):
        channel.before(f"device {index}")
        facts = _device(vulkan, c_void_p(devices[index]), api)
        channel.answer("device", index=index, **facts)
        types.add(facts["type"])
    return types


def _instance(api: int) -> InstanceCreateInfo:
    application = ApplicationInfo(0, None, b"tsuku-llm", 1, None, 0, api)
    names = [b"VK_KHR_portability_enumeration"] if sys.platform == "darwin" else []
    extensions = (c_char_p * max(1, len(names)))(*names)
    flags = len(names)  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR is 1
    return InstanceCreateInfo(
        1, None, flags, ctypes.pointer(application), 0, None, len(names), extensions
    )


def _device(vulkan: ctypes.CDLL, device: c_void_p, api: int) -> dict[str, Any]:
    properties = VkDeviceProperties()
    vulkan.vkGetPhysicalDeviceProperties(device, byref(properties))
    facts = {
        "name": text(properties.name),
        "type": properties.type,
        "api": properties.api,
        "vendor": properties.vendor,
        "device": properties.device,
        "driver_version": properties.driver,
        "heaps": _heaps(vulkan, device),
        "shared_memory": properties.limits[SHARED_MEMORY],
        "invocations": properties.limits[INVOCATIONS],
    }
    if min(api, properties.api) >= VERSION_1_1:
        facts |= _more(vulkan, device, properties.api)
        # ggml refuses devices without 16-bit values in storage buffers. The structure is part of
        # Vulkan 1.1; ``VkPhysicalDeviceVulkan11Features`` is only answered by devices of 1.2.
        storage = Storage16Features(1000083000, None)
        facts["storage16"] = _has_feature(vulkan, device, storage, "storage_buffer")
        if properties.api >= VERSION_1_2 or FLOAT_16 in _extensions(vulkan, device):
            floats = Float16Features(1000082000, None)
            facts["float16"] = _has_feature(vulkan, device, floats, "float_16")
    return facts


def _more(vulkan: ctypes.CDLL, device: c_void_p, api: int) -> dict[str, Any]:
    """Return what Vulkan 1.1 (identity) and 1.2 or an extension (driver) add."""
    if not hasattr(vulkan, "vkGetPhysicalDeviceProperties2"):
        return {}
    driver, identity = DriverProperties(1000196000, None), IdProperties(1000071004, None)
    tells_driver = api >= VERSION_1_2 or b"VK_KHR_driver_properties" in _extensions(vulkan, device)
    # The structures form a linked list: the query points to the identity, which points to the
    # driver.
    if tells_driver:
        identity.next = ctypes.cast(ctypes.pointer(driver), c_void_p)
    query = DeviceProperties2(1000059001, ctypes.cast(ctypes.pointer(identity), c_void_p))
    vulkan.vkGetPhysicalDeviceProperties2(device, byref(query))
    facts: dict[str, Any] = {"uuid": bytes(identity.device_uuid).hex()}
    if tells_driver:
        facts["driver_id"] = driver.id
        facts["driver"] = text(driver.name)
        facts["driver_info"] = text(driver.info)
    return facts


def _has_feature(
    vulkan: ctypes.CDLL, device: c_void_p, asked: ctypes.Structure, field: str
) -> bool | None:
    """Tell whether a device has the feature of this structure and field; None without the call."""
    if not hasattr(vulkan, "vkGetPhysicalDeviceFeatures2"):
        return None
    query = DeviceFeatures2(1000059000, ctypes.cast(ctypes.pointer(asked), c_void_p))
    vulkan.vkGetPhysicalDeviceFeatures2(device, byref(query))
    return bool(getattr(asked, field))


def _heaps(vulkan: ctypes.CDLL, device: c_void_p) -> list[list[int]]:
    """Return size in bytes and flags of each memory heap."""
    memory = VkMemoryProperties()
    vulkan.vkGetPhysicalDeviceMemoryProperties(device, byref(memory))
    return [[heap.size, heap.flags] for heap in memory.heaps[: min(memory.heap_count, 16)]]


def _extensions(vulkan: ctypes.CDLL, device: c_void_p) -> set[bytes]:
    count = c_uint32()
    vulkan.vkEnumerateDeviceExtensionProperties(device, None, byref(count), None)
    found = (ExtensionProperties * max(1, count.value))()
    vulkan.vkEnumerateDeviceExtensionProperties(device, None, byref(count), found)
    return {extension.name for extension in found[: count.value]}
