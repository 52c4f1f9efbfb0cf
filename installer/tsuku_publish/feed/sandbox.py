"""A short start of a new build, where it can do no harm: no network, no home, few files.

bubblewrap makes the sandbox. It sees the system's programs and libraries, read-only, the build, the
model and one folder for the server's Unix socket. Without bubblewrap nothing is started.
"""

import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import children

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/vulkan", "/etc/alternatives")
_SOFTWARE_VULKAN = "lvp_icd*.json"
_VULKAN_DRIVERS = Path("/usr/share/vulkan/icd.d")
_SECONDS_TO_START = 120.0
_SECONDS_TO_ANSWER = 60.0
_SECONDS_OF_CPU = 300
_LARGEST_FILE = 1 << 28
_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class SandboxStart:
    """How the start of a build went; ``works`` is None if it could not be tried here."""

    variant: str
    works: bool | None
    text: str


def start(variant: str, build: Path, server: str, model: Path | None) -> SandboxStart:
    """Start the server of an unpacked build with a tiny model, and ask it for a few tokens.

    A Vulkan build has to list Mesa's software device.
    """
    vulkan = variant.startswith("vulkan")
    missing = _missing(model, vulkan=vulkan)
    if missing or model is None:
        return SandboxStart(variant, works=None, text=f"not started: {missing}")
    with tempfile.TemporaryDirectory(prefix="feed-") as folder:
        box = _box(build, model, Path(folder), vulkan=vulkan)
        program = f"/build/{server}"
        if vulkan:
            listed = _run([*box, program, "--list-devices"])
            if "Vulkan0" not in listed:
                return SandboxStart(
                    variant, works=False, text=f"it lists no Vulkan device: {_last(listed)}"
                )
        return _served(variant, [*box, program], Path(folder))


def _missing(model: Path | None, *, vulkan: bool) -> str:
    """Return why nothing can be started here; empty if it can."""
    if model is None:
        return "no --model is given"
    for tool in ("bwrap", "prlimit"):
        if children.which(tool) is None:
            return f"{tool} is not installed"
    if vulkan and not [*_VULKAN_DRIVERS.glob(_SOFTWARE_VULKAN)]:
        return "Mesa's software Vulkan driver is not installed"
    # Containers may forbid what the sandbox is made of.
    probe = [_tool("bwrap"), "--unshare-all", "--ro-bind", "/", "/", "true"]
    tried = children.run(probe, capture_output=True, text=True)
    return f"bwrap does not work here: {_last(tried.stderr)}" if tried.returncode else ""


def _box(build: Path, model: Path, folder: Path, *, vulkan: bool) -> list[str]:
    """Return the words before a command that runs it in the sandbox."""
    words = [
        *(_tool("prlimit"), f"--cpu={_SECONDS_OF_CPU}", f"--fsize={_LARGEST_FILE}", "--core=0"),
        *(_tool("bwrap"), "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
    ]
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            words += ["--ro-bind", name, name]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/home"]  # noqa: S108
    words += ["--ro-bind", str(build.resolve()), "/build", "--ro-bind", str(model), "/model.gguf"]
    words += ["--bind", str(folder), "/socket", "--chdir", "/home", "--setenv", "HOME", "/home"]
    if vulkan:
        # Without it the server ignores software devices.
        words += ["--setenv", "GGML_VK_VISIBLE_DEVICES", "0"]
    return words


def _served(variant: str, command: list[str], folder: Path) -> SandboxStart:
    arguments = ["--host", "/socket/llama.sock", "-m", "/model.gguf", "-c", "256", "-ngl", "99"]
    log = folder / "log"
    with log.open("wb") as out:
        child = children.start(
            [*command, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            said = _asked(child, folder / "llama.sock")
        finally:
            # bwrap ends what it started: the process ids in there are its own.
            child.kill()
            child.wait()
    if said:
        last = _last(log.read_text("utf-8", "replace"))
        return SandboxStart(variant, works=False, text=f"{said}: {last}")
    return SandboxStart(variant, works=True, text="it started and answered")


def _asked(child: "subprocess.Popen[bytes]", path: Path) -> str:
    """Wait until the server is healthy, and ask for tokens; return what went wrong."""
    until = time.monotonic() + _SECONDS_TO_START
    while True:
        if child.poll() is not None:
            return f"it ended with {child.returncode}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _status(path, "GET", "/health", None) == http.client.OK:
                break
        if time.monotonic() > until:
            return f"it was not ready after {_SECONDS_TO_START:.0f} seconds"
        time.sleep(_PAUSE)
    wanted = json.dumps({"prompt": "hello", "n_predict": 4})
    try:
        status = _status(path, "POST", "/completion", wanted)
    except (OSError, http.client.HTTPException) as error:
        return f"it did not answer: {type(error).__name__} {error}".rstrip()
    return "" if status == http.client.OK else f"it answered {status}"


def _status(path: Path, method: str, target: str, body: str | None) -> int:
    with _connected(path) as connection:
        connection.request(method, target, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("localhost", timeout=_SECONDS_TO_ANSWER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        opened.settimeout(_SECONDS_TO_ANSWER)
        opened.connect(str(path))
        connection.sock = opened
        yield connection


def _run(command: list[str]) -> str:
    try:
        done = children.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_START)
    except subprocess.TimeoutExpired:
        return f"it did not end in {_SECONDS_TO_START:.0f} seconds"
    return str(done.stdout + done.stderr)


def _tool(name: str) -> str:
    return children.which(name) or name


def _last(text: str) -> str:
    """Return the last line of an output, for a message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:200] if lines else "it said nothing"
