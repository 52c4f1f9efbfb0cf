"""Why a server did not start: a table of patterns over its last words and its exit code. Pure.

The excerpts that the patterns come from stand in the tests, one per row.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

CPU_OVERRIDE = "tsuku-llm config set llm.backend cpu"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause and one fix; ``override`` is a command that goes round it, or empty."""

    slug: str
    cause: str
    fix: str
    override: str = ""

    def hint(self, backend: str) -> str:
        """Say in one line what to do; to fall back on the CPU helps a GPU build only."""
        if not self.override or backend == "cpu":
            return self.fix
        return f"{self.fix}; or run on the CPU: {self.override}"


@dataclass(frozen=True, slots=True)
class _Row:
    """``cause`` and ``fix`` are formatted with the pattern's named groups."""

    slug: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    override: str = ""


def _row(slug: str, pattern: str, cause: str, fix: str, override: str = "") -> _Row:
    return _Row(slug, re.compile(pattern, re.IGNORECASE), cause, fix, override)


_DRIVER = "install or update the GPU's driver, then reboot"
_SMALLER = "use a smaller model or quantisation, a smaller context (-c), or fewer layers (-ngl)"
_REINSTALL = "install it again: tsuku-llm install --force"
_OTHER = "install another variant: tsuku-llm explain shows which fit"

_TABLE = (
    _row(
        "libc-too-old",
        r"version [`'](?P<symbol>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)'? not found",
        "this system's C or C++ library is older than the build needs ({symbol} is missing)",
        "use a newer release of the distribution, or another variant (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    _row(
        "musl",
        r"Error relocating \S+: |Error loading shared library ld-linux",
        "the build is made for glibc and this system has another C library (musl)",
        "run it on a glibc distribution, for example in a Debian container",
    ),
    _row(
        "wrong-architecture",
        r"wrong ELF class|Bad CPU type in executable|incompatible architecture|Exec format error",
        "the build is for another processor architecture",
        "install the build for this machine: tsuku-llm install --force",
    ),
    _row(
        "noexec",
        r"failed to map segment from shared object",
        "a library cannot be mapped for execution: its folder is on a noexec mount",
        "move the store to a file system mounted without noexec (TSUKU_HOME)",
    ),
    _row(
        "system-too-old",
        r"built for macOS (?P<system>[\d.]+) which is newer than running OS",
        "the build needs macOS {system} or newer",
        "update macOS, or install an older release (tsuku-llm install --release)",
    ),
    _row(
        "missing-library",
        r"error while loading shared libraries: (?P<library>[^\s:]+): cannot open shared object"
        r"|Error loading shared library (?P<library_musl>[^\s:]+):"
        r"|Library not loaded: (?P<library_dyld>\S+)",
        "the shared library {library} is missing",
        "{package}",
        CPU_OVERRIDE,
    ),
    _row(
        "damaged-library",
        r"(?P<library>[^\s:]+): (?:invalid ELF header|file too short|undefined symbol: )"
        r"|Symbol not found: \S+\s+Referenced from: (?:<[^>]*> )?(?P<library_dyld>[^\n]+)",
        "the library {library} is damaged or of another release",
        _REINSTALL,
    ),
    _row(
        "port-in-use",
        r"couldn't bind (?:HTTP server socket|to server socket)[,:]? "
        r"hostname[:=] ?(?P<host>[^\s,]+),? port[:=] ?(?P<port>\d+)",
        "nothing can listen on {host} port {port}: it is in use, not allowed or not this machine's",
        "stop what uses it, or choose another with --port",
    ),
    _row(
        "port-in-use",
        r"couldn't bind [^\n]*?hostname[:=] ?(?P<host>[^\s,]+)",
        "nothing can listen at {host}",
        "stop what uses it, or choose another with --host",
    ),
    _row(
        "model-missing",
        r"(?:gguf|load)[^\n]*failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:?"
        r" \(?No such file",
        "the model {model} does not exist",
        "check the path given with -m",
    ),
    _row(
        "model-unreadable",
        r"(?:gguf|load)[^\n]*failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:?"
        r" \(?Permission",
        "the model {model} may not be read",
        "check its permissions and those of its folders",
    ),
    _row(
        "model-missing",
        r"failed to open GGUF file '?(?P<model>[^'\n]+)'?",
        "the model {model} cannot be opened",
        "check the path given with -m",
    ),
    _row(
        "not-a-model",
        r"invalid magic characters: |failed to read magic|invalid magic number",
        "the model file is not a GGUF file",
        "check the path given with -m; an interrupted or redirected download looks like this",
    ),
    _row(
        "model-incomplete",
        r"not within (?:the )?file bounds|model is corrupted or incomplete",
        "the model file is incomplete",
        "download it again",
    ),
    _row(
        "model-too-new",
        r"unknown model architecture: '(?P<architecture>[^']+)'",
        "this build does not know the model's architecture, {architecture}",
        "update the build: tsuku-llm update",
    ),
    _row(
        "ptx-too-new",
        r"provided PTX was compiled with an unsupported toolchain",
        "the GPU's driver is older than the CUDA toolkit that the build was made with",
        "update NVIDIA's driver, or install a variant for an older CUDA (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    _row(
        "no-kernel-image",
        r"no kernel image is available|NoBinaryForGpu"
        r"|Cannot read [^\n]*TensileLibrary",
        "the build has no code for this GPU's architecture",
        _OTHER,
        CPU_OVERRIDE,
    ),
    _row(
        "driver-too-old",
        r"driver version is insufficient|forward compatibility was attempted on non supported",
        "the GPU's driver is too old for the build",
        _DRIVER,
        CPU_OVERRIDE,
    ),
    _row(
        "driver-mismatch",
        r"driver/library version mismatch|unsupported display driver / cuda driver combination",
        "the loaded driver and its libraries have different versions",
        "reboot: the driver was updated while it was in use",
        CPU_OVERRIDE,
    ),
    _row(
        "vulkan-device-lost",
        r"ErrorDeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST",
        "the Vulkan driver gave up in the middle of the work (device lost)",
        "update the GPU's driver; a smaller batch (-ub 256) often avoids it",
        CPU_OVERRIDE,
    ),
    _row(
        "vulkan-driver",
        r"ErrorIncompatibleDriver|VK_ERROR_INCOMPATIBLE_DRIVER",
        "no Vulkan driver that the build can use",
        _DRIVER,
        CPU_OVERRIDE,
    ),
    _row(
        "out-of-gpu-memory",
        r"allocating (?P<size>[\d.]+ MiB) on device[^\n]*out of memory",
        "the GPU has not enough free memory ({size} more were asked for)",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    _row(
        "out-of-gpu-memory",
        r"(?:allocation of size|buffer of size) (?P<size>\d+)(?: failed)?",
        "not enough free memory ({size} bytes more were asked for)",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    _row(
        "out-of-gpu-memory",
        r"ErrorOutOfDeviceMemory|(?:CUDA|HIP|ROCm) error: out of memory"
        r"|unable to allocate \S+ buffer|kIOGPUCommandBufferCallbackErrorOutOfMemory",
        "the GPU has not enough free memory",
        _SMALLER,
        CPU_OVERRIDE,
    ),
    _row(
        "out-of-memory",
        r"std::bad_alloc|mmap failed: Cannot allocate memory|insufficient memory",
        "there is not enough free memory",
        _SMALLER,
    ),
    _row(
        "device-gone",
        r"invalid device: (?P<device>\S+)",
        "the server does not see the device {device}",
        "see what tsuku-llm probe finds; a driver that waits for a reboot looks like this",
        CPU_OVERRIDE,
    ),
)

_PACKAGES = {
    "libvulkan": "install the Vulkan loader (libvulkan1; Fedora: vulkan-loader; Arch: "
    "vulkan-icd-loader)",
    "libOpenCL": "install the OpenCL loader (ocl-icd-libopencl1; Fedora: ocl-icd; Arch: ocl-icd)",
    "libze_loader": "install the Level Zero loader (libze1; Fedora: oneapi-level-zero)",
    "libcudart": "the CUDA companion archive is missing: tsuku-llm install --force",
    "libcublas": "the CUDA companion archive is missing: tsuku-llm install --force",
    "libcuda": "install NVIDIA's driver; in a container, pass the GPU in (--gpus all)",
    "libamdhip": "install the ROCm runtime of the variant's version",
    "libhip": "install the ROCm runtime of the variant's version",
    "librocblas": "install the ROCm runtime of the variant's version",
    "libgomp": "install it (libgomp1; Fedora: libgomp; Arch: gcc-libs)",
    "libstdc++": "install it (libstdc++6; Fedora: libstdc++; Arch: gcc-libs)",
    "libssl": "install OpenSSL 3 (libssl3; Fedora: openssl-libs; Arch: openssl)",
    "libcrypto": "install OpenSSL 3 (libssl3; Fedora: openssl-libs; Arch: openssl)",
    "libggml": _REINSTALL,
    "libllama": _REINSTALL,
    "libmtmd": _REINSTALL,
}

_SIGNALS = {
    "SIGILL": Diagnosis(
        "illegal-instruction",
        "the build uses an instruction that this processor does not have",
        _OTHER,
    ),
    "SIGKILL": Diagnosis(
        "killed",
        "the server was killed (SIGKILL), most often by the kernel when memory runs out",
        _SMALLER,
    ),
    **{
        name: Diagnosis(
            "crashed",
            f"the server crashed ({name})",
            "update the GPU's driver and the build (tsuku-llm update)",
            CPU_OVERRIDE,
        )
        for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS")
    },
}

_NT_STATUS = {
    0xC0000135: Diagnosis(
        "missing-library",
        "a DLL that the server needs is missing (0xC0000135)",
        "install the Visual C++ 2015-2022 runtime and the GPU's driver",
        CPU_OVERRIDE,
    ),
    0xC0000139: Diagnosis(
        "damaged-library",
        "a DLL is of another release (0xC0000139)",
        _REINSTALL,
        CPU_OVERRIDE,
    ),
    0xC000007B: Diagnosis(
        "wrong-architecture",
        "a DLL is for another processor architecture (0xC000007B)",
        "install the Visual C++ 2015-2022 runtime for this machine",
        CPU_OVERRIDE,
    ),
    0xC000001D: _SIGNALS["SIGILL"],
    0xC0000005: Diagnosis(
        "crashed",
        "the server crashed (access violation, 0xC0000005)",
        "update the GPU's driver and the build (tsuku-llm update)",
        CPU_OVERRIDE,
    ),
}


def diagnose(code: int, tail: str) -> Diagnosis | None:
    """Explain an end by its last output and its exit code (negative: minus the signal).

    What the server or its loader said comes before how it ended: an abort is most often
    the end of something that was explained. None where nothing is recognised.
    """
    return _by_text(tail) or _by_code(code)


def signal_name(code: int) -> str | None:
    """Name the signal of a negative exit code; None if it is no signal."""
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return f"signal {-code}"


def _by_text(tail: str) -> Diagnosis | None:
    for row in _TABLE:
        found = row.pattern.search(tail)
        if found:
            return _filled(row, found)
    return None


def _by_code(code: int) -> Diagnosis | None:
    return _SIGNALS.get(signal_name(code) or "") or _NT_STATUS.get(code & 0xFFFFFFFF)


def _filled(row: _Row, found: re.Match[str]) -> Diagnosis:
    """Fill a row in; ``library_*`` are the one library in other loaders' wordings."""
    facts = {name.split("_")[0]: value for name, value in found.groupdict().items() if value}
    facts["package"] = _package(facts.get("library", ""))
    return Diagnosis(row.slug, row.cause.format_map(facts), row.fix.format_map(facts), row.override)


def _package(library: str) -> str:
    name = library.rsplit("/", 1)[-1]
    longest = max((key for key in _PACKAGES if name.startswith(key)), key=len, default="")
    return _PACKAGES.get(longest, f"install the package of your distribution that has {name}")
