"""The causes that lie in the system: loader, libraries, permissions, limits, network.

Each row comes from the real output of a loader, a C library or a server. ``tests/last_words.txt``
has at least one text with its source for each row.
"""

from __future__ import annotations

from tsuku_llm.launch.failed.causes import CPU_OVERRIDE, OTHER, SMALLER, UPDATE_BUILD, Cause
from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, REINSTALL_COMMAND

_POLICY = "see the denial (ausearch -m avc, or dmesg | grep -i apparmor) and allow it"
_BY_HAND = "download it with another program, then: tsuku-llm serve -m FILE.gguf"
_LOADING = r"loading shared librar(?:ies:|y) |failed to load \S+: "

# On one line the first row that matches counts, so narrower rows come first.
SYSTEM = (
    # --- what the loader says ---
    Cause(
        "libc-too-old",
        "system",
        r": version [`'](?P<symbol>(?:GLIBC|GLIBCXX|CXXABI|GCC|GOMP)_[\d.]+)'? not found"
        r" \(required by",
        "this system's C or C++ library is older than the build needs ({symbol} is missing)",
        "use a newer release of the distribution, or another variant (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    Cause(
        "library-version",
        "system",
        r": version [`'](?P<symbol>[^`'\n]+)'? not found \(required by",
        "a shared library of this system has another version than the build needs ({symbol})",
        f"take its folder out of LD_LIBRARY_PATH; or {REINSTALL}",
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
        rf"(?:{_LOADING})\S+: wrong ELF class|Bad CPU type in executable"
        r"|incompatible architecture|Exec format error",
        "the build is for another processor architecture",
        FOR_THIS_MACHINE,
    ),
    Cause(
        "processor-too-old",
        "system",
        r"CPU ISA level is lower than required",
        "this processor is older than a library of the system or of the build needs",
        OTHER,
    ),
    Cause(
        "kernel-too-old",
        "system",
        r"FATAL: kernel too old",
        "the kernel is older than the C library needs",
        "update the kernel, or use a container image of an older release",
    ),
    Cause(
        "library-refused",
        "system",
        r"cannot enable executable stack as shared object requires",
        "the system forbids a library that wants an executable stack (SELinux, or glibc 2.41)",
        f"{UPDATE_BUILD}; or {_POLICY}",
        CPU_OVERRIDE,
    ),
    Cause(
        "library-refused",
        "system",
        r"cannot (?:restore segment prot after reloc|apply additional memory protection after"
        r" relocation|change memory protections)",
        "a security policy forbids to load a library (SELinux, AppArmor)",
        _POLICY,
    ),
    Cause(
        # glibc says no more, whatever the kernel's reason was.
        "library-refused",
        "system",
        r"failed to map segment from shared object",
        "a library cannot be mapped into memory: its folder is on a noexec mount, "
        "the limit on memory (ulimit -v) is too low, or a security policy forbids it",
        "raise the limit on memory (ulimit -v); or move the store to a file system mounted "
        "without noexec (TSUKU_HOME)",
    ),
    Cause(
        "library-refused",
        "system",
        rf"(?:{_LOADING})(?P<library>[^\s:]+): cannot open shared object file: "
        r"(?:Permission denied|Operation not permitted)",
        "this user may not read the shared library {library}",
        "check the permissions of the file and its folders, and the system's security policy",
    ),
    Cause(
        "too-many-files",
        "system",
        r"Too many open files|cannot open shared object file: Error 24\b",
        "this process may not open more files",
        "raise the limit (ulimit -n; LimitNOFILE= in a unit)",
    ),
    Cause(
        "static-tls",
        "system",
        r"cannot allocate memory in static TLS block",
        "the C library has no room left for a library's thread-local memory",
        "set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096, or leave out LD_PRELOAD",
    ),
    Cause(
        "out-of-memory",
        "model",
        r"cannot (?:allocate (?:name record|symbol search list)|create (?:cache for search path"
        r"|shared object descriptor|search path array)|map zero-fill pages): Cannot allocate",
        "there is not enough memory to load the server's libraries",
        "raise the limit of memory (ulimit -v, the container's or the unit's), or free some",
    ),
    Cause(
        "system-too-old",
        "system",
        r"built for macOS (?P<system>[\d.]+) which is newer than running OS",
        "the build needs macOS {system} or newer",
        "update macOS, or install an older release (tsuku-llm install --release)",
    ),
    Cause(
        "quarantined",
        "system",
        r"not valid for use in process|library load disallowed by system policy"
        r"|have different Team IDs",
        "macOS refuses a library of the build: it is in quarantine, or its signature is not valid",
        f"install it again ({REINSTALL_COMMAND}), or allow it: "
        "xattr -dr com.apple.quarantine FOLDER",
    ),
    # A library of the GPU's: a build for another backend does without it.
    Cause(
        "missing-library",
        "backend",
        rf"(?:{_LOADING})(?P<library>lib(?:vulkan|cu(?:da|blas)|nvidia|amdhip|hip|roc|hsa|ze_|sycl"
        r"|OpenCL|svml|imf|mkl)[^\s:]*):[^\n]*No such file",
        "the shared library {library} is missing",
        "{package}",
        CPU_OVERRIDE,
    ),
    # In turn the words of glibc, of musl and of macOS' dyld.
    Cause(
        "missing-library",
        "system",
        rf"(?:{_LOADING})(?P<library>[^\s:]+): cannot open shared object file"
        r"|Error loading shared library (?P<library_musl>[^\s:]+):"
        r"|Library not loaded: (?P<library_dyld>\S+)",
        "the shared library {library} is missing",
        "{package}",
        CPU_OVERRIDE,
    ),
    Cause(
        "missing-library",
        "system",
        r"failed to load (?P<library>\S+\.dll): The specified module could not be found",
        "a DLL that {library} needs is missing",
        "install the GPU's driver, and the Visual C++ 2015-2022 runtime",
        CPU_OVERRIDE,
    ),
    # A container's runtime mounts the driver over such empty files.
    Cause(
        "driver-library-empty",
        "backend",
        rf"(?:{_LOADING})(?P<library>\S*lib(?:cuda|nvidia|vulkan|amdhip|ze_)[^\s:]*): "
        r"file too short",
        "the driver's library {library} is an empty file, as in a container without the GPU",
        "pass the GPU in (--gpus all, with the vendor's container toolkit)",
        CPU_OVERRIDE,
    ),
    Cause(
        "damaged-library",
        "system",
        rf"(?:{_LOADING}|symbol lookup error: )"
        r"(?P<library>[^\s:]+): (?:invalid ELF header|file too short|undefined symbol: "
        r"|ELF load command [^\n]*|cannot read file data|object file has no loadable segments"
        r"|only ET_DYN and ET_EXEC can be loaded)"
        r"|Symbol not found: \S+\s+Referenced from: (?:<[^>]*> )?(?P<library_dyld>[^\n]+)",
        "the library {library} is damaged or from another release",
        REINSTALL,
    ),
    Cause(
        "damaged-library",
        "system",
        r"failed to initialize backend from (?P<library>\S+): incompatible API version",
        "the library {library} is from another release",
        REINSTALL,
    ),
    # --- limits ---
    Cause(
        "thread-limit",
        "system",
        r"system_error|what\(\): +(?:Resource temporarily unavailable|thread::)"
        r"|Thread creation failed|pthread_create (?:failed|: )|failed to create thread",
        "the system allows no more threads or processes",
        "raise the limit (ulimit -u, TasksMax= in a unit, --pids-limit of a container)",
    ),
    Cause(
        "no-space",
        "system",
        r"No space left on device|Disk quota exceeded",
        "a file system is full",
        "free space there; in a container also in /dev/shm and /tmp",
    ),
    Cause(
        "locale",
        "system",
        r"locale::facet::_S_create_c_locale name not valid",
        "the locale of this environment (LANG, LC_ALL) is not installed",
        "set LC_ALL=C.UTF-8",
    ),
    Cause(
        "out-of-memory",
        "model",
        r"posix_memalign failed|mmap failed: Cannot allocate memory|std::bad_alloc"
        r"|insufficient memory(?! \()|bad_alloc error",
        "there is not enough free memory",
        SMALLER,
    ),
    # --- the model's file as the system sees it ---
    Cause(
        "mapping-refused",
        "system",
        r"mmap failed: (?P<said>[^\n]+)",
        "the model's file cannot be mapped into memory here ({said})",
        "read it instead: add --no-mmap",
    ),
    # --- the server's address ---
    # A Unix socket: the port in the line is not used.
    Cause(
        "port-in-use",
        "arguments",
        r"couldn't bind [^\n]*?hostname[:=] ?(?P<host>[^\s,]+\.sock)",
        "nothing can listen at {host}: it exists already, or its folder does not or is closed",
        "stop what uses it and remove it, or choose another with --host",
    ),
    Cause(
        "port-in-use",
        "arguments",
        r"couldn't bind (?:HTTP server socket|to server socket)[,:]? "
        r"hostname[:=] ?(?P<host>[^\s,]+),? port[:=] ?(?P<port>\d+)",
        "nothing can listen on {host} port {port}: it is in use or not allowed, "
        "or the address is not this machine's",
        "stop what uses it, or choose another with --port",
    ),
    # --- downloads ---
    Cause(
        "no-https",
        "arguments",
        r"HTTPS is not supported|HTTPS requested but|'https' scheme is not supported"
        r"|built without (?:lib)?CURL, (?:cannot )?download",
        "this build cannot download a model: it was built without HTTPS",
        f"use upstream's build, which has it: tsuku-llm install --channel stable; or {_BY_HAND}",
    ),
    Cause(
        "download-untrusted",
        "system",
        r"SSL server (?:hostname )?verification failed|SSL connection failed"
        r"|SSL peer certificate or SSH remote key was not OK|Problem with the SSL CA cert"
        r"|server certificate verification failed",
        "the certificate of the download's host is not trusted here",
        f"install your CA's certificate (package ca-certificates); or {_BY_HAND}",
    ),
    Cause(
        "download-refused",
        "arguments",
        r"(?:HEAD failed, status|\(status|status code|HTTP code|error code|response code"
        r"|status code received): "
        r"(?P<status>40[1346]|451)",
        "the download was refused (HTTP status {status})",
        "check the name of the repository and file; a gated model needs a token (HF_TOKEN)",
    ),
    Cause(
        "download-offline",
        "arguments",
        r"required file is not available in cache \(offline mode\)",
        "the model is not in the cache, and --offline forbids to download it",
        "leave out --offline once, or give the file's path with -m",
    ),
    Cause(
        "download-failed",
        "system",
        r"Could not establish connection|Could(?: not|n't) resolve host|Connection timed out"
        r"|Failed to connect to [^\n]*port \d+",
        "the model could not be downloaded",
        f"check the network and the proxy (HTTPS_PROXY); or {_BY_HAND}",
    ),
    Cause(
        "download-failed",
        "system",
        r"download failed after \d+ attempts|(?:HEAD|GET) failed|http client error"
        r"|cannot make GET request|failed to download model|Download '[^\n]*' failed with status",
        "the model could not be downloaded",
        f"check the network and the proxy (HTTPS_PROXY); or {_BY_HAND}",
        rank=1,
    ),
    # Nothing was found for -hf or --model-url, for a reason that was printed before, or not at all.
    Cause(
        "download-failed",
        "arguments",
        r"exactly one out metadata, path_model, and file must be defined"
        r"|failed to resolve commit for",
        "no file of a model was found for what -hf or --model-url names",
        f"check the name; with --offline, whether it was downloaded before; or {_BY_HAND}",
        rank=1,
    ),
    Cause(
        "not-writable",
        "system",
        r"failed to create cache directory: (?P<path>[^\n]+)",
        "the folder for downloaded models cannot be made ({path})",
        "set LLAMA_CACHE to a folder that this user may write",
    ),
    Cause(
        "file-system",
        "system",
        r"filesystem error: (?P<said>[^\n]+)",
        "a file or folder cannot be used ({said})",
        "check that it exists, and this user's permissions",
    ),
)
