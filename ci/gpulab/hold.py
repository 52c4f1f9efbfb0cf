"""A process that holds memory of one NVIDIA GPU: ``hold.py DEVICE FREE``.

It leaves FREE bytes, says so in one line, and holds the rest until its stdin is closed.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    """Take the memory by CUDA's driver API, which needs no toolkit."""
    device, free = int(sys.argv[1]), int(sys.argv[2])
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
    now, total = ctypes.c_size_t(), ctypes.c_size_t()
    for code in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(now), ctypes.byref(total)),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(1, now.value - free))),
    ):
        if code:
            sys.exit(f"CUDA's driver returned {code}")
    sys.stdout.write(f"{free} of {total.value} bytes are free\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
