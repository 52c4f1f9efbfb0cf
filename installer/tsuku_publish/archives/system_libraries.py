"""The libraries that a build need not bring along: which every system has, and which clients ask.

By the name that a file needs: a soname of Linux, a DLL of Windows in lower case, and on macOS an
install name (its last part where dyld searches folders of the build).
"""

from __future__ import annotations

from collections.abc import Iterable

_ON_EVERY_SYSTEM: dict[str, tuple[str, ...]] = {
    "glibc: the oldest version that a build runs with is measured": (
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld64.so.1"),
        *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"),
    ),
    "libstdc++: its oldest version is measured, too": ("libstdc++.so.6",),
    "the compiler: each system with libstdc++ has it": ("libgcc_s.so.1",),
    "the driver's own library or loader: the client looks for it before it downloads": (
        *("libcuda.so.1", "libOpenCL.so.1", "libvulkan.so.1", "libze_loader.so.1"),
        *("nvcuda.dll", "opencl.dll", "vulkan-1.dll", "ze_loader.dll"),
    ),
    # Microsoft, "Redistributing Visual C++ Files". Its oldest version is measured.
    "the Visual C++ runtime": (
        *("vcruntime140.dll", "vcruntime140_1.dll", "vcruntime140_threads.dll"),
        *("msvcp140.dll", "msvcp140_1.dll", "msvcp140_2.dll", "msvcp140_atomic_wait.dll"),
        *("msvcp140_codecvt_ids.dll", "concrt140.dll", "vcomp140.dll"),
    ),
    # Microsoft, "Universal CRT deployment": a part of Windows since 10. Python 3.10, which the
    # client runs on, needs it as well, so no machine with the client lacks it.
    "the Universal C Runtime": ("ucrtbase.dll",),
    # Microsoft, "API Index": the header, the library and the DLL of each function.
    "Windows itself": (
        *("advapi32.dll", "avrt.dll", "bcrypt.dll", "bcryptprimitives.dll", "cfgmgr32.dll"),
        *("combase.dll", "crypt32.dll", "cryptbase.dll", "d3d11.dll", "d3d12.dll", "dbghelp.dll"),
        *("dnsapi.dll", "dxcore.dll", "dxgi.dll", "gdi32.dll", "iphlpapi.dll", "kernel32.dll"),
        *("kernelbase.dll", "mpr.dll", "msvcrt.dll", "ncrypt.dll", "netapi32.dll", "ntdll.dll"),
        *("ole32.dll", "oleaut32.dll", "pdh.dll", "powrprof.dll", "psapi.dll", "rpcrt4.dll"),
        *("secur32.dll", "setupapi.dll", "shell32.dll", "shlwapi.dll", "user32.dll"),
        *("userenv.dll", "version.dll", "winhttp.dll", "wininet.dll", "winmm.dll", "wintrust.dll"),
        *("wldap32.dll", "ws2_32.dll"),
    ),
}
"""Names in groups, by the reason why systems have them."""

SYSTEM_LIBRARIES = frozenset(name for names in _ON_EVERY_SYSTEM.values() for name in names)

_OF_THE_SYSTEM = (
    # Microsoft, "Windows API sets": names that Windows' loader maps to DLLs of the system.
    *("api-ms-win-", "ext-ms-"),
    # Apple, "Overview of dynamic libraries": only the system installs into these folders.
    *("/usr/lib/", "/System/Library/"),
)
"""The beginnings of names that only the system has."""

ASKED_LIBRARIES = frozenset(
    {
        # The compiler's OpenMP: gcc links it dynamically, and a bare image lacks it.
        "libgomp.so.1",
        # Part of Ubuntu 22.04 and later, Debian 12, Fedora 36 and RHEL 9; a bare image lacks it.
        *("libssl.so.3", "libcrypto.so.3"),
    }
)
"""Most systems have these and some lack them: clients ask each machine before the download.

``[[library]]`` of ``rules.toml`` and ``--system-library`` add more.
"""


def not_of_the_system(names: Iterable[str]) -> set[str]:
    """Return the libraries that not every system has."""
    return {
        name
        for name in names
        if name not in SYSTEM_LIBRARIES and not name.startswith(_OF_THE_SYSTEM)
    }
