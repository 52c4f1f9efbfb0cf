"""What a test needs from the system: skipped without it, failed where CI promised it.

A newcomer's machine may lack nginx or a C compiler, and the tests then say what they could
not show. CI installs everything and sets ``TSUKU_LLM_REQUIRE_TOOLS=1``: there a missing
tool is a failure, so that no test is lost without a word.
"""

import ctypes.util
import os
import shutil
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterable

import pytest

REQUIRED = "TSUKU_LLM_REQUIRE_TOOLS"
_ABSENT = " is not installed"


def require_tool(name: str) -> str:
    """The path of a program ("nginx", "gcc"), or of one that is a test's package ("uv").

    Administrators' folders are looked at too.
    """
    own = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", "")
    places = os.pathsep.join([own, path, "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return shutil.which(name, path=places) or missing(f"the program {name}")


def require_library(name: str) -> str:
    """The file name of a shared library, by its short name ("vulkan" for libvulkan.so.1)."""
    return ctypes.util.find_library(name) or missing(f"the library {name}")


def open_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal: our end and the program's. A sandbox may lack /dev/pts."""
    try:
        return os.openpty()
    except (AttributeError, OSError) as error:
        pytest.skip(f"no terminal can be opened here: {error}")


def missing(what: str) -> str:
    """Skip the test for want of ``what``, or fail it where everything has to be there."""
    if threading.current_thread() is not threading.main_thread():
        # Only the test's own thread can end it: a stand-in host's would answer with an error.
        raise RuntimeError(f"{what}{_ABSENT}: the test has to ask for it before it needs it")
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{what}{_ABSENT}, and {REQUIRED}=1 promises that it is")
    pytest.skip(f"{what}{_ABSENT}")


def untested(skipped: Iterable[pytest.TestReport]) -> Counter[str]:
    """Count the tests that were skipped for each thing that this system lacks."""
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    prefix = "Skipped: "
    found = (reason for reason in reasons if reason.endswith(_ABSENT))
    return Counter(reason.removeprefix(prefix).removesuffix(_ABSENT) for reason in found)
