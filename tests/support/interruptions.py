"""Runs of an operation that are killed, or whose disk is full, at random points."""

import ctypes
import os
import random
import signal
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.sweeps import stride

POINTS = 200
_CODE = f"{os.sep}tsuku_llm{os.sep}"
_NEW_NAMES, _NEW_USER = 0x20000, 0x10000000
"""Flags of unshare(2): mounts of our own, and the right to make them."""


def points(most: int) -> list[int]:
    """Random points up to ``most``, the same in every run."""
    numbers = random.Random(18)  # noqa: S311 - not for secrets
    return [numbers.randint(1, most) for _ in range(POINTS)][:: stride(20)]


def child(act: Callable[[], None]) -> int:
    """Act in a forked child; return its status as ``waitstatus_to_exitcode`` has it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees the code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def counting(at: int | None) -> Callable[[FrameType, str, Any], None]:
    """Make a profile that counts the calls of our code, and kills this process at one of them."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if "call" in event and _CODE in frame.f_code.co_filename:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    profile.total = lambda: count  # type: ignore[attr-defined]
    return profile


def own_mounts() -> None:
    """Give this process mounts of its own, which end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    flags = _NEW_NAMES if user == 0 else _NEW_NAMES | _NEW_USER
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount("--make-rprivate", "/")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
