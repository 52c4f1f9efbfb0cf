"""The values of a diagnosis, and the causes that only an exit code or a signal tells.

The causes that the output tells are tables of their own: ``causes_system``,
``causes_arguments``, ``causes_model`` and ``causes_gpu``. To add one, see CONTRIBUTING.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, REINSTALL_COMMAND

Fault = Literal["backend", "model", "arguments", "system", "unknown"]
"""Whose fault a failed start is: what has to change before the server can start.

Another variant helps only against the backend's fault. Too little memory is the model's: another
backend has the same memory.
"""

CPU_OVERRIDE = "tsuku-llm config set llm.backend cpu"

DRIVER = "install or update the GPU's driver, then reboot"
SMALLER = "use a smaller model or quantisation, a smaller context (-c), or fewer layers (-ngl)"
OTHER = "install another variant: tsuku-llm explain shows which fit"
_UPDATE_COMMAND = "tsuku-llm update"
UPDATE_BUILD = f"update the build: {_UPDATE_COMMAND}"
_REPORT = f"update the build ({_UPDATE_COMMAND}); if it stays so, report the line to llama.cpp"
UPDATE = f"update the GPU's driver and the build ({_UPDATE_COMMAND})"
_OF_ONES_OWN = "install --force --from"
"""What the command that installs an unsigned build again has: from its path, or its source."""
_FOR_ONES_OWN = {
    FOR_THIS_MACHINE: "make a build for this machine, then",
    REINSTALL: "install it again from complete files:",
    _UPDATE_COMMAND: "make a newer one, then",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause and one fix; ``override`` is a command that avoids the cause, or empty.

    ``facts`` are the lines or codes by which the cause was recognised, unchanged. ``fault``
    decides whether another variant may be started instead.
    """

    slug: str
    cause: str
    fix: str
    override: str = ""
    facts: tuple[str, ...] = ()
    fault: Fault = field(kw_only=True)

    def hint(self, backend: str, reinstall: str) -> str:
        """Say in one line what to do; the CPU is offered only if ``backend`` is a GPU's.

        ``reinstall`` is the command that installs this build again, "" if it is not known: without
        its release and variant, another build may be installed.
        """
        fix = self.fix
        if _OF_ONES_OWN in reinstall:
            # The same files would fail again, and ``update`` leaves such a build alone.
            for advice, own in _FOR_ONES_OWN.items():
                fix = fix.replace(advice, f"{own} {REINSTALL_COMMAND}")
        fix = fix.replace(REINSTALL_COMMAND, reinstall or REINSTALL_COMMAND)
        if not self.override or backend == "cpu":
            return fix
        return f"{fix}; or run on the CPU: {self.override}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of a table: ``pattern`` is searched in the complaints, ignoring case.

    ``cause`` and ``fix`` are formatted with the pattern's named groups. Groups ``library_*``
    are ``library`` in the wording of other loaders. ``{package}`` is the advice on how to
    get that library, ``{option}`` the argument that names the file.

    ``rank`` 0 is a cause, 1 what another cause led to, 2 where it ended: a line counts only if
    nothing of a lower rank was said. ``option``: the argument from which the file came that the
    lines before are about.
    """

    slug: str
    fault: Fault
    pattern: str
    cause: str
    fix: str
    override: str = ""
    rank: int = 0
    option: str = ""


# Any program's last words, without those of a driver or loader.
GENERAL = (
    # The file tells whose check it is.
    Cause(
        "assertion",
        "backend",
        r"ggml-(?:cuda|vulkan|metal|sycl|opencl|hip|musa|cann|webgpu)\S*:\d+: (?P<said>[^\n]+)",
        "a check in the backend's code failed: {said}",
        UPDATE,
        CPU_OVERRIDE,
        rank=2,
    ),
    Cause(
        "assertion",
        "model",
        r"\S\.(?:c|cc|cpp|h|hpp):\d+: (?P<said>[^\n]+)",
        "a check in the server's code failed: {said}",
        _REPORT,
        rank=2,
    ),
    Cause(
        "assertion",
        "unknown",
        r"terminate called after throwing an instance of '(?P<said>[^']+)'"
        r"|what\(\): +(?P<said_what>[^\n]+)|libc\+\+abi: terminating[^\n]*?: (?P<said_abi>[^\n]+)",
        "the server ended on an error that it did not expect: {said}",
        _REPORT,
        rank=2,
    ),
    # The C library's words before it aborts.
    Cause(
        "crashed",
        "unknown",
        r"(?P<said>stack smashing detected|(?:malloc|free|realloc|munmap_chunk)\(\): [^\n]+"
        r"|double free or corruption|corrupted (?:size|double-linked)[^\n]*)",
        "the server damaged its own memory ({said})",
        _REPORT,
        rank=2,
    ),
    # Upstream's sentence around any reason, and around none.
    Cause(
        "model-unusable",
        "model",
        r"error loading model: (?!llama_model_loader: failed to load model from)(?P<said>[^\n]+)",
        "the server cannot load the model: {said}",
        "get a newer conversion of it, or update the build (tsuku-llm update)",
        rank=1,
    ),
    Cause(
        "context",
        "model",
        r"failed to initialize the context: (?P<said>[^\n]+)",
        "the server cannot make a context for the model: {said}",
        "try a smaller context (-c), and leave out arguments about cache and rope",
        rank=1,
    ),
)

# Used only where the output says nothing: see ``diagnosis.diagnose``.
SIGNALS = {
    "SIGILL": Diagnosis(
        "illegal-instruction",
        "the build uses an instruction that this processor does not have",
        OTHER,
        fault="system",
    ),
    "SIGKILL": Diagnosis(
        "killed",
        "the server was killed (SIGKILL), most often by the kernel when memory runs out",
        SMALLER,
        fault="system",
    ),
    "SIGSEGV": Diagnosis(
        "crashed", "the server crashed (SIGSEGV)", UPDATE, CPU_OVERRIDE, fault="backend"
    ),
    "SIGBUS": Diagnosis(
        "mapping-lost",
        "a mapped file could not be read (SIGBUS): it was cut, or its disk or network failed",
        "check the model's file and its disk, or read it whole: --no-mmap",
        fault="system",
    ),
    "SIGSYS": Diagnosis(
        "forbidden-call",
        "a sandbox forbids a system call that the server makes (SIGSYS)",
        "allow it in the seccomp filter of the container or service",
        fault="system",
    ),
    "SIGXCPU": Diagnosis(
        "time-limit",
        "the server used up its processor time (SIGXCPU)",
        "raise the limit (ulimit -t)",
        fault="system",
    ),
    "SIGXFSZ": Diagnosis(
        "file-limit",
        "the server wrote a file larger than this process may write (SIGXFSZ)",
        "raise the limit (ulimit -f), or turn off its log file",
        fault="system",
    ),
    **{
        name: Diagnosis(
            "ended-from-outside",
            f"another program ended the server ({name})",
            "see who stops it: a service manager, a container's runtime, or a time limit",
            fault="system",
        )
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
    },
    **{
        name: Diagnosis(
            "crashed",
            f"the server crashed ({name})",
            UPDATE_BUILD,
            CPU_OVERRIDE,
            fault="unknown",
        )
        for name in ("SIGABRT", "SIGFPE", "SIGTRAP")
    },
}

OOM_KILLED = Diagnosis(
    "oom-killed",
    "the kernel killed the server, as memory ran out",
    SMALLER,
    facts=("oom_kill in /proc/vmstat rose while it ran",),
    fault="system",
)

# Windows has no signals: a process that crashes exits with the code of its exception.
NT_STATUS = {
    0xC0000135: Diagnosis(
        "missing-library",
        "a DLL that the server needs is missing (0xC0000135)",
        "install the Visual C++ 2015-2022 runtime and the GPU's driver",
        CPU_OVERRIDE,
        fault="system",
    ),
    0xC0000139: Diagnosis(
        "damaged-library",
        "a DLL is from another release (0xC0000139)",
        REINSTALL,
        CPU_OVERRIDE,
        fault="system",
    ),
    0xC000007B: Diagnosis(
        "wrong-architecture",
        "a DLL is for another processor architecture (0xC000007B)",
        "install the Visual C++ 2015-2022 runtime for this machine",
        CPU_OVERRIDE,
        fault="system",
    ),
    0xC0000142: Diagnosis(
        "damaged-library",
        "a DLL does not initialise (0xC0000142)",
        UPDATE,
        CPU_OVERRIDE,
        fault="system",
    ),
    0xC0000017: Diagnosis(
        "out-of-memory", "there is not enough memory (0xC0000017)", SMALLER, fault="model"
    ),
    0xC000012D: Diagnosis(
        "out-of-memory", "memory and page file are used up (0xC000012D)", SMALLER, fault="model"
    ),
    0xE06D7363: Diagnosis(
        "crashed",
        "the server ended with a C++ exception (0xE06D7363), as with a driver that is too old",
        DRIVER,
        CPU_OVERRIDE,
        fault="backend",
    ),
    0xC0000409: Diagnosis(
        "crashed",
        "the server ended itself (0xC0000409), as on a failed assertion",
        UPDATE_BUILD,
        CPU_OVERRIDE,
        fault="unknown",
    ),
    0xC000001D: SIGNALS["SIGILL"],
    0xC0000005: Diagnosis(
        "crashed",
        "the server crashed (access violation, 0xC0000005)",
        UPDATE,
        CPU_OVERRIDE,
        fault="backend",
    ),
}
