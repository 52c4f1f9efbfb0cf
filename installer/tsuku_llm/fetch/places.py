"""Reads and writes at an offset of an open file, for any thread."""

from __future__ import annotations

import os
import sys
import threading

if sys.platform == "win32":
    # Windows has one position for each open file. Without the lock, another thread could move
    # it between our seek and our read. One lock for all files: these calls are short.
    _POSITION = threading.Lock()

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        """Do what ``os.pread`` does, which Windows lacks."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def write_at(descriptor: int, data: memoryview, offset: int) -> int:
        """Do what ``os.pwrite`` does, which Windows lacks."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

else:
    read_at = os.pread
    write_at = os.pwrite
