"""Reading and writing at a place of an open file, by any thread."""

from __future__ import annotations

import os
import sys
import threading

if sys.platform == "win32":
    _POSITION = threading.Lock()

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        """As ``os.pread``, which Windows has not."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def write_at(descriptor: int, data: memoryview, offset: int) -> int:
        """As ``os.pwrite``, which Windows has not."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

else:
    read_at = os.pread
    write_at = os.pwrite
