"""The child's environment: the user's, without variables that load foreign code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from tsuku_llm.machine.host import Host

KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
WSL_LIBRARIES = "/usr/lib/wsl/lib"
# Dropped: what changes the child's interpreter, preloads or traces libraries, or adds Vulkan or
# Level Zero layers. A layer is not the driver, and it may crash or hang.
DROPPED_PREFIXES = ("PYTHON", "DYLD_INSERT", "VK_LAYER_", "VK_LOADER_LAYERS_")
DROPPED = frozenset(
    {
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_DEBUG",
        "LD_PROFILE",
        "VK_INSTANCE_LAYERS",
        "VK_ADD_LAYER_PATH",
        "VK_IMPLICIT_LAYER_PATH",
        "VK_ADD_IMPLICIT_LAYER_PATH",
        "VK_LOADER_DEBUG",
        "ZE_ENABLE_TRACING_LAYER",
        "ZE_ENABLE_VALIDATION_LAYER",
    }
)
ADDED = {
    # Overlays and device sorters load into every Vulkan instance. The first variable turns
    # them off in loaders since 1.3.234; the next three name single layers for older loaders.
    "VK_LOADER_LAYERS_DISABLE": "~implicit~",
    "NODEVICE_SELECT": "1",
    "DISABLE_VULKAN_OBS_CAPTURE": "1",
    "DISABLE_LAYER_AMD_SWITCHABLE_GRAPHICS_1": "1",
    # A question must not write to the user's caches or start worker threads.
    "MESA_SHADER_CACHE_DISABLE": "true",
    "CUDA_CACHE_DISABLE": "1",
    "LP_NUM_THREADS": "0",
}


def is_wsl(host: Host) -> bool:
    """Tell whether this is the Windows Subsystem for Linux."""
    return "microsoft" in (host.read_text(KERNEL_RELEASE) or "").lower()


def child_environment(
    environ: Mapping[str, str],
    scratch: str | None,
    root: str,
    *,
    first_library_folder: str | None = None,
) -> dict[str, str]:
    """Return the child's environment; the drivers' own variables and library paths stay.

    ``scratch`` is a private, writable folder: PoCL lists no device without a cache. Without it,
    PoCL has the user's own cache.
    ``first_library_folder`` comes before the user's ``LD_LIBRARY_PATH``.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
    }
    kept |= ADDED
    if scratch:
        kept["POCL_CACHE_DIR"] = scratch
    if first_library_folder:
        paths = [root + first_library_folder, kept.get("LD_LIBRARY_PATH", "")]
        kept["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    return kept
