"""The known causes of a failed start, as data: what is printed, what it means, what to do.

Each row's pattern comes from the real output of a loader, a driver or a server. The excerpts
are in ``tests/last_words.txt``, at least one for each row. To add a cause, add both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["backend", "model", "arguments", "system"]
"""Whose fault a failed start is: only another variant helps, or one of the other three must change.

The memory of a GPU is the model's fault: another backend has the same memory.
"""

CPU_OVERRIDE = "tsuku-llm config set llm.backend cpu"


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

    def hint(self, backend: str) -> str:
        """Say in one line what to do; the CPU is offered only if ``backend`` is a GPU's."""
        if not self.override or backend == "cpu":
            return self.fix
        return f"{self.fix}; or run on the CPU: {self.override}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of the table: ``pattern`` is searched in the last output, ignoring case.

    ``cause`` and ``fix`` are formatted with the pattern's named groups. Groups ``library_*``
    are ``library`` in the wording of other loaders. ``{package}`` is the advice on how to
    get that library.
    """

    slug: str
    fault: Fault
    pattern: str
    cause: str
    fix: str
    override: str = ""


_DRIVER = "install or update the GPU's driver, then reboot"
_SMALLER = "use a smaller model or quantisation, a smaller context (-c), or fewer layers (-ngl)"
_REINSTALL = "install it again: tsuku-llm install --force"
_OTHER = "install another variant: tsuku-llm explain shows which fit"
_UPDATE = "update the GPU's driver and the build (tsuku-llm update)"

# The first row that matches wins, so special rows come before general ones.
TABLE = (
    # --- what the loader says ---
    Cause(
        "libc-too-old",
        "system",
        r"version [`'](?P<symbol>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)'? not found",
        "this system's C or C++ library is older than the build needs ({symbol} is missing)",
        "use a newer release of the distribution, or another variant (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    # musl's loader words its complaints differently from glibc's.
    Cause(
        "musl",
        "system",
        r"Error relocating \S+: |Error loading shared library ld-linux",
        "the build is made for glibc and this system has another C library (musl)",
        "run it on a glibc distribution, for example in a Debian container",
    ),
    Cause(
        "wrong-architecture",
        "system",
        r"wrong ELF class|Bad CPU type in executable|incompatible architecture|Exec format error",
        "the build is for another processor architecture",
        "install the build for this machine: tsuku-llm install --force",
    ),
    Cause(
        "noexec",
        "system",
        r"failed to map segment from shared object",
        "a library cannot be mapped for execution: its folder is on a noexec mount",
        "move the store to a file system mounted without noexec (TSUKU_HOME)",
    ),
    Cause(
        "system-too-old",
        "system",
        r"built for macOS (?P<system>[\d.]+) which is newer than running OS",
        "the build needs macOS {system} or newer",
        "update macOS, or install an older release (tsuku-llm install --release)",
    ),
    # A library of the GPU's: a build for another backend does without it.
    Cause(
        "missing-library",
        "backend",
        r"loading shared librar(?:ies:|y) (?P<library>lib(?:vulkan|cu(?:da|blas)|nvidia|amdhip|hip"
        r"|roc|hsa|ze_|sycl|OpenCL)[^\s:]*):[^\n]*No such file",
        "the shared library {library} is missing",
        "{package}",
        CPU_OVERRIDE,
    ),
    # In turn the words of glibc, of musl and of macOS' dyld.
    Cause(
        "missing-library",
        "system",
        r"error while loading shared libraries: (?P<library>[^\s:]+): cannot open shared object"
        r"|Error loading shared library (?P<library_musl>[^\s:]+):"
        r"|Library not loaded: (?P<library_dyld>\S+)",
        "the shared library {library} is missing",
        "{package}",
        CPU_OVERRIDE,
    ),
    Cause(
        "damaged-library",
        "system",
        r"(?P<library>[^\s:]+): (?:invalid ELF header|file too short|undefined symbol: )"
        r"|Symbol not found: \S+\s+Referenced from: (?:<[^>]*> )?(?P<library_dyld>[^\n]+)",
        "the library {library} is damaged or from another release",
        _REINSTALL,
    ),
    # --- what the server says ---
    Cause(
        "port-in-use",
        "arguments",
        r"couldn't bind (?:HTTP server socket|to server socket)[,:]? "
        r"hostname[:=] ?(?P<host>[^\s,]+),? port[:=] ?(?P<port>\d+)",
        "nothing can listen on {host} port {port}: it is in use or not allowed, "
        "or the address is not this machine's",
        "stop what uses it, or choose another with --port",
    ),
    # The same without a port, as for a Unix socket.
    Cause(
        "port-in-use",
        "arguments",
        r"couldn't bind [^\n]*?hostname[:=] ?(?P<host>[^\s,]+)",
        "nothing can listen at {host}",
        "stop what uses it, or choose another with --host",
    ),
    Cause(
        "model-missing",
        "arguments",
        r"(?:gguf|load)[^\n]*failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:?"
        r" \(?No such file",
        "the model {model} does not exist",
        "check the path given with -m",
    ),
    Cause(
        "model-unreadable",
        "system",
        r"(?:gguf|load)[^\n]*failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:?"
        r" \(?Permission",
        "this user may not read the model {model}",
        "check its permissions and those of its folders",
    ),
    # Versions that do not print the system's reason.
    Cause(
        "model-missing",
        "arguments",
        r"failed to open GGUF file '?(?P<model>[^'\n]+)'?",
        "the model {model} cannot be opened",
        "check the path given with -m",
    ),
    Cause(
        "not-a-model",
        "model",
        r"invalid magic characters: |failed to read magic|invalid magic number",
        "the model file is not a GGUF file",
        "check the path given with -m; an interrupted or redirected download looks like this",
    ),
    Cause(
        "model-incomplete",
        "model",
        r"not within (?:the )?file bounds|model is corrupted or incomplete",
        "the model file is incomplete",
        "download it again",
    ),
    Cause(
        "model-too-new",
        "model",
        r"unknown model architecture: '(?P<architecture>[^']+)'",
        "this build does not know the model's architecture, {architecture}",
        "update the build: tsuku-llm update",
    ),
    # --- what the GPU's driver or ggml's backend says ---
    Cause(
        "ptx-too-new",
        "backend",
        r"provided PTX was compiled with an unsupported toolchain",
        "the GPU's driver is older than the CUDA toolkit that the build was made with",
        "update NVIDIA's driver, or install a variant for an older CUDA (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    Cause(
        "no-kernel-image",
        "backend",
        r"no kernel image is available|NoBinaryForGpu|invalid device function"
        r"|device kernel image is invalid"
        r"|Cannot read [^\n]*TensileLibrary",
        "the build has no code for this GPU's architecture",
        _OTHER,
        CPU_OVERRIDE,
    ),
    Cause(
        "driver-too-old",
        "backend",
        r"driver version is insufficient|forward compatibility was attempted on non supported",
        "the GPU's driver is too old for the build",
        _DRIVER,
        CPU_OVERRIDE,
    ),
    Cause(
        "driver-mismatch",
        "backend",
        r"driver/library version mismatch|unsupported display driver / cuda driver combination",
        "the loaded driver and its libraries have different versions",
        "reboot: the driver was updated while it was in use",
        CPU_OVERRIDE,
    ),
    Cause(
        "vulkan-device-lost",
        "backend",
        r"ErrorDeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST",
        "the Vulkan driver failed during the work (device lost)",
        "update the GPU's driver; a smaller batch (-ub 256) often avoids it",
        CPU_OVERRIDE,
    ),
    Cause(
        "driver-asleep",
        "backend",
        r"failed to initialize (?:CUDA|ROCm): (?P<said>unknown error|system not yet initialized)",
        "the GPU's driver does not start ({said}), often after a suspend or right after boot",
        "reload its kernel module (sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm), "
        "or reboot",
        CPU_OVERRIDE,
    ),
    Cause(
        "vulkan-driver",
        "backend",
        r"Error(?:IncompatibleDriver|InitializationFailed)"
        r"|VK_ERROR_(?:INCOMPATIBLE_DRIVER|INITIALIZATION_FAILED)",
        "no Vulkan driver that the build can use",
        _DRIVER,
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"allocating (?P<size>[\d.]+ MiB) on device[^\n]*out of memory",
        "there is not enough free memory on the GPU ({size} were requested)",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    # Before the next "buffer of size" row, which means the GPU's memory.
    Cause(
        "out-of-memory",
        "model",
        r"cpu_buffer_type_alloc_buffer: failed to allocate buffer of size (?P<size>\d+)",
        "there is not enough free memory on this machine ({size} bytes were requested)",
        _SMALLER,
    ),
    Cause(
        "buffer-too-large",
        "model",
        r"Requested buffer size exceeds device (?:buffer size|memory allocation) limit",
        "the GPU's driver allows no buffer as large as this model or context needs",
        "use a smaller context (-c) or batch (-ub 256), or fewer layers (-ngl)",
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"(?:allocation of size|buffer of size) (?P<size>\d+)(?: failed)?",
        "not enough free memory ({size} bytes were requested)",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"ErrorOutOfDeviceMemory|(?:CUDA|HIP|ROCm) error: out of memory"
        r"|unable to allocate \S+ buffer|kIOGPUCommandBufferCallbackErrorOutOfMemory",
        "there is not enough free memory on the GPU",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-memory",
        "model",
        r"std::bad_alloc|mmap failed: Cannot allocate memory|insufficient memory",
        "there is not enough free memory",
        _SMALLER,
    ),
    Cause(
        "device-gone",
        "arguments",
        r"invalid device: (?P<device>\S+)",
        "the server does not see the device {device}",
        "look at the output of tsuku-llm probe; a driver that waits for a reboot looks like this",
        CPU_OVERRIDE,
    ),
)

# Used only where the output says nothing: see ``diagnosis.diagnose``.
SIGNALS = {
    "SIGILL": Diagnosis(
        "illegal-instruction",
        "the build uses an instruction that this processor does not have",
        _OTHER,
        fault="system",
    ),
    "SIGKILL": Diagnosis(
        "killed",
        "the server was killed (SIGKILL), most often by the kernel when memory runs out",
        _SMALLER,
        fault="system",
    ),
    **{
        name: Diagnosis(
            "crashed",
            f"the server crashed ({name})",
            _UPDATE,
            CPU_OVERRIDE,
            fault="backend",
        )
        for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS")
    },
}

OOM_KILLED = Diagnosis(
    "oom-killed",
    "the kernel killed the server, as memory ran out",
    _SMALLER,
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
        _REINSTALL,
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
        _UPDATE,
        CPU_OVERRIDE,
        fault="system",
    ),
    0xC0000017: Diagnosis(
        "out-of-memory", "there is not enough memory (0xC0000017)", _SMALLER, fault="model"
    ),
    0xC000012D: Diagnosis(
        "out-of-memory",
        "memory and page file are used up (0xC000012D)",
        _SMALLER,
        fault="model",
    ),
    0xE06D7363: Diagnosis(
        "crashed",
        "the server ended with a C++ exception (0xE06D7363), as with a driver that is too old",
        _DRIVER,
        CPU_OVERRIDE,
        fault="backend",
    ),
    0xC0000409: Diagnosis(
        "crashed",
        "the server ended itself (0xC0000409), as on a failed assertion",
        _UPDATE,
        CPU_OVERRIDE,
        fault="backend",
    ),
    0xC000001D: SIGNALS["SIGILL"],
    0xC0000005: Diagnosis(
        "crashed",
        "the server crashed (access violation, 0xC0000005)",
        _UPDATE,
        CPU_OVERRIDE,
        fault="backend",
    ),
}
