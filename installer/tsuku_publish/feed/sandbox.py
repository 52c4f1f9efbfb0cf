"""A short start of a new build, where it can do no harm: no network, no home, few files.

bubblewrap makes the sandbox. It sees the system's programs and libraries, the build and the model,
all read-only, and one small folder in memory. Without bubblewrap nothing is started.

The build is hostile until it has proven the contrary. So the parent opens nothing by a path that
the build could change: output comes through a pipe, and the server's socket is opened by its
descriptor, without following a link. Nothing of the parent's environment is in the sandbox, not
even in the memory of bubblewrap's own process, which the build can read in ``/proc/1``. A thread
ends the sandbox as soon as all its processes together use more than ``SandboxLimits`` allow.

What is not limited is memory that no process has mapped (memfd, shared memory of System V) and that
a build frees within the time limit: only a control group of the job's own can count that.
"""

import contextlib
import http.client
import json
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tsuku_llm.ground.processes import children
from tsuku_llm.ground.safe_text import printable
from tsuku_publish.errors import PublishError
from tsuku_publish.isolated import ISOLATED

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/vulkan", "/etc/alternatives")
_SOFTWARE_VULKAN = "lvp_icd*.json"
_VULKAN_DRIVERS = Path("/usr/share/vulkan/icd.d")
_OWN = "tmp"
"""The folder that the build can write to, its home and the place of its socket."""
_SOCKET = "llama.sock"
_LARGEST_ANSWER = 1 << 20
_TAIL = 1 << 12
"""Bytes at the end of the output that are searched for its last line."""
_SECONDS_TO_END = 10.0
_PAUSE = 0.05
_PAGE = 4096

# In a user namespace of its own a program would have every capability again, over little.
_CLOSED = (*ISOLATED, "--disable-userns", "--clearenv", "--proc", "/proc", "--dev", "/dev")
_FIRST = 'echo; read -r go; exec "$@" </dev/null'
"""The first program in the sandbox: it waits until the parent has opened its descriptors."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a build may use, all its processes together; ``threads`` include its processes.

    Times are in seconds, the others in bytes; ``names`` are its files and folders. A Vulkan build
    compiles its shaders at the start: with the software driver of Debian 13 (Mesa 25) it took 42
    seconds of one processor for a tiny model, and several times as long beside other work.
    """

    to_start: float = 480.0
    in_all: float = 720.0
    threads: int = 1024
    memory: int = 8 << 30
    files: int = 64 << 20
    names: int = 4096
    output: int = 64 << 20


@dataclass(frozen=True, slots=True)
class SandboxStart:
    """How the start of a build went; ``works`` is None if it could not be tried here."""

    variant: str
    works: bool | None
    text: str


def start(
    variant: str, build: Path, model: Path | None, limits: SandboxLimits | None = None
) -> SandboxStart:
    """Start the server of an unpacked build with a tiny model, and ask it for a few tokens.

    A Vulkan build has to list Mesa's software device. Raises ``PublishError`` if bubblewrap fails
    now, and worked for a trial.
    """
    limits = limits or SandboxLimits()
    vulkan = variant.startswith("vulkan")
    missing = _missing(model, vulkan=vulkan)
    if missing or model is None:
        return SandboxStart(variant, works=None, text=f"not started: {missing}")
    words = _box(build, model, limits, vulkan=vulkan)
    program = "/build/llama-server"
    if vulkan:
        with _sandbox(words, [program, "--list-devices"], limits) as box:
            ended = box.ended_by_itself()
        if said := ended or ("" if "Vulkan0" in box.output else "it lists no Vulkan device"):
            return SandboxStart(variant, works=False, text=f"{said}: {_last(box.output)}")
    arguments = ["--host", f"/{_OWN}/{_SOCKET}", "-m", "/model.gguf", "-c", "256", "-ngl", "99"]
    with _sandbox(words, [program, *arguments], limits) as box:
        said = _asked(box)
    if said:
        return SandboxStart(variant, works=False, text=f"{said}: {_last(box.output)}")
    return SandboxStart(variant, works=True, text="it started and answered")


def _missing(model: Path | None, *, vulkan: bool) -> str:
    """Return why nothing can be started here; empty if it can."""
    if model is None:
        return "no --model is given"
    for tool in ("bwrap", "prlimit"):
        if children.which(tool) is None:
            return f"{tool} is not installed"
    if vulkan and not [*_VULKAN_DRIVERS.glob(_SOFTWARE_VULKAN)]:
        return "Mesa's software Vulkan driver is not installed"
    # Containers may forbid what the sandbox is made of, and a bubblewrap before 0.8 lacks some.
    probe = [_tool("bwrap"), *_CLOSED, *_system(), "--size", "4096", "--tmpfs", f"/{_OWN}", "true"]
    tried = children.run(probe, capture_output=True, text=True, env={})
    return f"bwrap does not work here: {_last(tried.stderr)}" if tried.returncode else ""


def _box(build: Path, model: Path, limits: SandboxLimits, *, vulkan: bool) -> list[str]:
    """Return bubblewrap's arguments: what a command in the sandbox sees."""
    words = [*_CLOSED, *_system(), "--ro-bind", str(build.resolve()), "/build"]
    words += ["--ro-bind", str(model.resolve()), "/model.gguf"]
    # The only place to write to; bubblewrap's own root and /dev are in memory without a limit.
    words += ["--size", str(limits.files), "--tmpfs", f"/{_OWN}", "--chdir", f"/{_OWN}"]
    words += ["--remount-ro", "/dev", "--remount-ro", "/"]
    environment = {"HOME": f"/{_OWN}", "PATH": "/usr/bin:/bin"}
    if vulkan:
        # Without it the server ignores software devices.
        environment["GGML_VK_VISIBLE_DEVICES"] = "0"
    for name, value in environment.items():
        words += ["--setenv", name, value]
    return words


def _system() -> list[str]:
    """Return the arguments that give a sandbox the system's folders; some are links to others."""
    words: list[str] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    return words


# --- the processes in the sandbox --------------------------------------------------------------


@dataclass
class _Sandbox:
    """A running sandbox; ``own`` and ``proc`` are descriptors of two of its folders.

    ``exceeded`` says which limit has ended it, empty for none.
    """

    child: "subprocess.Popen[bytes]"
    own: int
    proc: int
    limits: SandboxLimits
    exceeded: str = ""
    _until: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _read: int = 0
    _end: bytes = b""

    @property
    def output(self) -> str:
        """The end of what its processes have printed; complete when the sandbox has ended."""
        return self._end.decode("utf-8", "replace")

    def ended_by_itself(self) -> str:
        """Wait for its end; return what went wrong, empty for exit code 0."""
        code = self.child.wait()
        return self.exceeded or (f"it ended with {code}" if code else "")

    def copy_output(self) -> None:
        """Read the output until its last writer is gone, and keep the end of it."""
        assert self.child.stdout is not None
        while block := self.child.stdout.read(1 << 16):
            self._read += len(block)
            self._end = (self._end + block)[-_TAIL:]

    def watch(self) -> None:
        """End the sandbox when it has used more than it may."""
        while not self._over.wait(_PAUSE):
            with contextlib.suppress(OSError):  # it ends at this moment
                self.exceeded = self._excess()
            if self.exceeded:
                # bubblewrap's end is that of its first process there, and so of all.
                self.child.kill()
                return

    def _excess(self) -> str:
        limits = self.limits
        if time.monotonic() > self._until:
            return f"it was not done after {limits.in_all:.0f} seconds"
        if self._read > limits.output:
            return f"it printed more than {limits.output:,} bytes"
        filled = os.fstatvfs(self.own)
        if filled.f_files - filled.f_ffree > limits.names:
            return f"it made more than {limits.names:,} files"
        threads = pages = 0
        for number in self._processes():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                place = os.open(f"{number}/stat", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.proc)
                with os.fdopen(place, "rb") as file:
                    # A process chooses its name, which is in parentheses: count from its end.
                    fields = file.read(_TAIL).rpartition(b")")[2].split()
                threads += int(fields[17])
                pages += int(fields[21])
        if threads > limits.threads:
            return f"it started more than {limits.threads} threads"
        if pages * _PAGE > limits.memory:
            return f"it used more than {limits.memory:,} bytes of memory"
        return ""

    def _processes(self) -> list[str]:
        """Return the numbers of its processes: its folder /proc lists no others."""
        with os.scandir(self.proc) as entries:
            return [each.name for each in entries if each.name.isdecimal()]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch it in the block, and end it after the block."""
        self._until = time.monotonic() + self.limits.in_all
        work = (self.watch, self.copy_output)
        threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            self.child.kill()
            self.child.wait()
            for thread in threads:
                thread.join()
            # The kernel ends the others when it has ended the first process there, so a moment
            # later; the folder then lists none.
            until = time.monotonic() + _SECONDS_TO_END
            while self._processes() and time.monotonic() < until:
                time.sleep(_PAUSE / 10)


@contextlib.contextmanager
def _sandbox(words: list[str], command: list[str], limits: SandboxLimits) -> Iterator[_Sandbox]:
    """Run a command in a sandbox with these arguments; it ends with the block.

    Raises ``PublishError`` if bubblewrap fails.
    """
    kept = contextlib.ExitStack()
    # Not as words of the command: the build can read those of bubblewrap in /proc/1/cmdline.
    arguments, giving = os.pipe()
    with os.fdopen(giving, "wb") as pipe:
        pipe.write("\0".join(words).encode())
    info, telling = os.pipe()
    # Limits of each process of its own. They count in the sandbox: outside, a user may have more
    # threads than that already.
    limited = [_tool("prlimit"), f"--fsize={limits.files}", "--core=0", "--nofile=256"]
    limited += [f"--nproc={limits.threads}", "--"]
    first = ["/bin/sh", "-c", _FIRST, "sh", *limited, *command]
    with kept, os.fdopen(info, "rb") as told:
        try:
            child = kept.enter_context(
                children.start(
                    [
                        *(_tool("bwrap"), "--args", str(arguments), "--info-fd", str(telling)),
                        *first,
                    ],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(arguments, telling),
                    # bubblewrap's first process keeps it, and --clearenv does not take it away.
                    env={},
                )
            )
        finally:
            os.close(arguments)
            os.close(telling)
        kept.callback(child.kill)
        assert child.stdin is not None
        assert child.stdout is not None
        # Until now only bubblewrap and the system's shell are there: nothing can be swapped yet.
        if child.stdout.read(1) != b"\n":
            raise PublishError("bwrap could not start anything, and it could a moment ago")
        root = os.open(f"/proc/{json.load(told)['child-pid']}/root", os.O_PATH | os.O_DIRECTORY)
        kept.callback(os.close, root)
        flags = os.O_DIRECTORY | os.O_NOFOLLOW
        own = os.open(_OWN, os.O_PATH | flags, dir_fd=root)
        kept.callback(os.close, own)
        proc = os.open("proc", os.O_RDONLY | flags, dir_fd=root)
        kept.callback(os.close, proc)
        box = _Sandbox(child, own, proc, limits)
        with box.watched():
            child.stdin.write(b"\n")
            child.stdin.close()
            yield box


# --- the server's answers ------------------------------------------------------------------------


def _asked(box: _Sandbox) -> str:
    """Wait until the server is healthy, and ask for tokens; return what went wrong."""
    until = time.monotonic() + box.limits.to_start
    while True:
        if box.child.poll() is not None:
            return box.ended_by_itself() or "it ended with 0"
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _status(box, "GET", "/health", None) == http.client.OK:
                break
        if time.monotonic() > until:
            return f"it was not ready after {box.limits.to_start:.0f} seconds"
        time.sleep(_PAUSE)
    wanted = json.dumps({"prompt": "hello", "n_predict": 4})
    try:
        status = _status(box, "POST", "/completion", wanted)
    except (OSError, http.client.HTTPException) as error:
        told = printable(f"{type(error).__name__} {error}".rstrip())
        return box.exceeded or f"it did not answer: {told[:200]}"
    return "" if status == http.client.OK else f"it answered {status}"


def _status(box: _Sandbox, method: str, target: str, body: str | None) -> int:
    """Ask the server at its socket; return the answer's status.

    Raises ``OSError`` and ``HTTPException``.
    """
    # The last part of the name is the build's: a link there could lead to a socket of ours. The
    # descriptor is of the file itself, so no later exchange of the name matters.
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(_SOCKET, flags, dir_fd=box.own)
    try:
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise OSError("no socket is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
            opened.settimeout(box.limits.in_all)
            opened.connect(f"/proc/self/fd/{place}")
            connection = http.client.HTTPConnection("localhost")
            connection.sock = opened
            connection.request(method, target, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if len(response.read(_LARGEST_ANSWER)) == _LARGEST_ANSWER:
                raise http.client.HTTPException("a longer answer than any server gives")
            return response.status
    finally:
        os.close(place)


def _tool(name: str) -> str:
    return children.which(name) or name


def _last(text: str) -> str:
    """Return the last line of an output, for a message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return printable(" ".join(lines[-1].split())[:200]) if lines else "it said nothing"
