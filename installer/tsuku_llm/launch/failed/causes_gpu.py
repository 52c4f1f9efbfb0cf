"""The causes that lie in the GPU: its driver, its memory, the backend's code.

Each row comes from the output of a driver, or of ggml's backend for it. ``tests/last_words.txt``
has at least one text with its source for each row.
"""

from __future__ import annotations

from tsuku_llm.launch.failed.causes import CPU_OVERRIDE, DRIVER, OTHER, SMALLER, UPDATE, Cause

_HOLDERS = "see who uses it (nvidia-smi, or fuser /dev/dri/*)"
_FREE = f"{_HOLDERS}, and end that; or {SMALLER}"

# On one line the first row that matches counts, so narrower rows come first.
GPU = (
    # --- the driver does not fit the build ---
    Cause(
        "ptx-too-new",
        "backend",
        r"provided PTX was compiled with an unsupported toolchain"
        r"|PTX JIT compiler library not found",
        "the GPU's driver is older than the CUDA toolkit that the build was made with",
        "update NVIDIA's driver, or install a variant for an older CUDA (tsuku-llm explain)",
        CPU_OVERRIDE,
    ),
    Cause(
        "no-kernel-image",
        "backend",
        r"no kernel image is available|NoBinaryForGpu|invalid device function"
        r"|device kernel image is invalid|HSA_STATUS_ERROR_INVALID_ISA"
        r"|Cannot read [^\n]*TensileLibrary|has no device code compatible with|no code object",
        "the build has no code for this GPU's architecture",
        OTHER,
        CPU_OVERRIDE,
    ),
    Cause(
        "driver-too-old",
        "backend",
        r"driver version is insufficient|forward compatibility was attempted on non supported"
        r"|Vulkan 1\.2 required",
        "the GPU's driver is too old for the build",
        DRIVER,
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
        "stub-library",
        "backend",
        r"driver is a stub library",
        "the library of a CUDA toolkit (a stub) is found in place of NVIDIA's driver",
        "take the toolkit's folder 'stubs' out of LD_LIBRARY_PATH, and install NVIDIA's driver",
        CPU_OVERRIDE,
    ),
    # --- the driver does not start ---
    Cause(
        "fabric-manager",
        "backend",
        r"system not yet initialized",
        "the GPUs are not ready: NVIDIA's fabric manager does not run, or is of another version",
        "install and start nvidia-fabricmanager in the driver's version "
        "(systemctl status nvidia-fabricmanager)",
        CPU_OVERRIDE,
    ),
    Cause(
        "no-gpu-visible",
        "backend",
        r"no (?:CUDA|ROCm|HIP)-capable device is detected|No device of requested type available"
        r"|DEVICE_NOT_FOUND|Found no drivers|ggml_vulkan: No devices found"
        r"|platform IDs not available",
        "the driver shows no GPU to the server",
        "see: tsuku-llm doctor; in a container, pass the GPU in",
        CPU_OVERRIDE,
        rank=1,
    ),
    Cause(
        "device-access",
        "backend",
        r"Unable to open /dev/kfd|/dev/dri/\S+[^\n]*Permission denied|video group membership"
        r"|failed to open \S*(?:renderD\d+|/dev/nvidia)",
        "this user may not open the GPU's device",
        "add the user to the groups render and video, and log in again",
        CPU_OVERRIDE,
    ),
    Cause(
        "driver-asleep",
        "backend",
        r"failed to initialize (?:CUDA|ROCm): (?P<said>unknown error|initialization error)",
        "the GPU's driver does not start ({said}), often after a suspend or an update",
        "reload its kernel module (sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm), "
        "or reboot",
        CPU_OVERRIDE,
    ),
    Cause(
        "gpu-busy",
        "system",
        r"devices?(?:\(s\))? (?:is/)?(?:are )?busy or unavailable",
        "the GPU is busy: another process has it for itself (exclusive mode), or it hangs",
        f"{_HOLDERS}, or allow sharing: sudo nvidia-smi -c 0",
        CPU_OVERRIDE,
    ),
    Cause(
        "gpu-hardware",
        "system",
        r"uncorrectable (?:ECC|NVLink) error|Invalid access of peer GPU memory over nvlink",
        "the GPU reports a fault of its hardware ({line})",
        "reset the GPU or reboot; if it comes back, the card is defective (nvidia-smi -q -d ECC)",
        CPU_OVERRIDE,
    ),
    # --- Vulkan ---
    Cause(
        "vulkan-device-lost",
        "backend",
        r"ErrorDeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST|CS has been (?:cancelled|rejected)",
        "the Vulkan driver failed during the work (device lost)",
        "update the GPU's driver; a smaller batch (-ub 256) often avoids it",
        CPU_OVERRIDE,
    ),
    Cause(
        "vulkan-driver",
        "backend",
        r"Error(?:IncompatibleDriver|InitializationFailed)"
        r"|VK_ERROR_(?:INCOMPATIBLE_DRIVER|INITIALIZATION_FAILED)",
        "no Vulkan driver that the build can use",
        DRIVER,
        CPU_OVERRIDE,
    ),
    Cause(
        "gpu-too-old",
        "backend",
        r"does not support 16-bit storage|Shared memory size too small for matrix multiplication"
        r"|ErrorFeatureNotPresent|ErrorExtensionNotPresent"
        r"|aspect fp16|doesn't support fp16",
        "the GPU or its driver lacks what the backend needs ({line})",
        f"update the driver; if it stays so, {OTHER}",
        CPU_OVERRIDE,
    ),
    Cause(
        "gpu-too-old",
        "backend",
        r"error loading model: Unsupported device",
        "the backend does not support this GPU",
        f"update the driver; if it stays so, {OTHER}",
        CPU_OVERRIDE,
        rank=1,
    ),
    Cause(
        "bad-variable",
        "arguments",
        r"Invalid device index (?P<index>\S+) in GGML_VK_VISIBLE_DEVICES",
        "GGML_VK_VISIBLE_DEVICES names the device {index}, which does not exist",
        "correct the variable, or unset it",
    ),
    Cause(
        "vulkan-layer",
        "system",
        r"ErrorLayerNotPresent|VK_ERROR_LAYER_NOT_PRESENT",
        "a Vulkan layer that the environment asks for is not installed",
        "unset VK_INSTANCE_LAYERS and VK_LOADER_LAYERS_ENABLE, or install the layer",
    ),
    Cause(
        "shader-failed",
        "backend",
        r"Compute pipeline creation failed"
        r"|create(?:ComputePipeline|ShaderModule)\w*: Error(?!OutOf)",
        "the Vulkan driver cannot compile a shader of the backend",
        DRIVER,
        CPU_OVERRIDE,
    ),
    # --- memory ---
    Cause(
        "out-of-gpu-memory",
        "model",
        r"allocating (?P<size>[\d.]+ MiB) on device[^\n]*out of memory",
        "there is not enough free memory on the GPU ({size} were requested)",
        _FREE,
        CPU_OVERRIDE,
    ),
    # Before the "buffer of size" row, which means the GPU's memory.
    Cause(
        "out-of-memory",
        "model",
        r"cpu\w*_buffer_type_alloc_buffer: failed to allocate buffer of size (?P<size>\d+)"
        r"|failed to allocate CPU buffer of size (?P<size_cpu>\d+)",
        "there is not enough free memory on this machine ({size} bytes were requested)",
        SMALLER,
    ),
    Cause(
        "out-of-memory",
        "model",
        r"OutOfHostMemory|OUT_OF_HOST_MEMORY|unable to allocate CPU\w* buffer",
        "there is not enough free memory on this machine",
        SMALLER,
    ),
    Cause(
        "buffer-too-large",
        "model",
        r"Requested buffer size exceeds device (?:buffer size|memory allocation) limit"
        r"|INVALID_BUFFER_SIZE|can't alloc [\d.]+ Bytes? of memory",
        "the GPU's driver allows no buffer as large as this model or context needs",
        "use a smaller context (-c) or batch (-ub 256), or fewer layers (-ngl)",
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"allocation of size (?P<size>\d+) failed",
        "not enough free memory ({size} bytes were requested)",
        _FREE,
        CPU_OVERRIDE,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"OutOfDeviceMemory|OUT_OF_DEVICE_MEMORY|(?<!HSA_STATUS_ERROR_)OUT_OF_RESOURCES|MEM_OBJECT_ALLOCATION_FAILURE"
        r"|(?:CUDA|HIP|ROCm|MUSA|SYCL) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDA error: the (?:resource allocation failed|library was not initialized)"
        r"|CUBLAS_STATUS_NOT_INITIALIZED|rocblas_status_memory_error|hipErrorOutOfMemory"
        r"|kIOGPUCommandBufferCallbackErrorOutOfMemory|Insufficient Memory \(",
        "there is not enough free memory on the GPU",
        _FREE,
        CPU_OVERRIDE,
    ),
    # What ggml and llama.cpp add to a backend's own words.
    Cause(
        "out-of-gpu-memory",
        "model",
        r"failed to allocate \S+ buffer of size (?P<size>\d+)"
        r"|failed to allocate buffer of size (?P<size_any>\d+)",
        "not enough free memory ({size} bytes were requested)",
        SMALLER,
        CPU_OVERRIDE,
        rank=1,
    ),
    Cause(
        "out-of-gpu-memory",
        "model",
        r"unable to allocate \S+ buffer|failed to allocate (?:buffer for (?:kv|rs) cache"
        r"|compute (?:pp |tg )?buffers|output buffer|graph)"
        r"|failed to reserve (?:graph|initial output)|failed to create ggml context",
        "there is not enough free memory for the model or its context",
        SMALLER,
        CPU_OVERRIDE,
        rank=1,
    ),
    # --- Metal and SYCL ---
    Cause(
        "metal-library",
        "backend",
        r"MTLLibraryErrorDomain|default\.metallib not found|failed to create library"
        r"|ggml-common\.h' file not found|XPC_ERROR_CONNECTION_INTERRUPTED",
        "Metal cannot compile the backend's code for this Mac",
        "update macOS and the build (tsuku-llm update)",
        CPU_OVERRIDE,
    ),
    Cause(
        "sycl-build",
        "backend",
        r"BUILD_PROGRAM_FAILURE|PROGRAM_BUILD|The program was built for \d+ devices?",
        "Intel's driver cannot compile the backend's code",
        "update Intel's compute runtime (intel-opencl-icd, libze-intel-gpu1)",
        CPU_OVERRIDE,
    ),
    Cause(
        "backend-start",
        "backend",
        r"failed to initialize (?P<device>\S+) backend",
        "the backend does not start on the device {device}",
        UPDATE,
        CPU_OVERRIDE,
        rank=1,
    ),
    # --- anything else that a driver reports, in its own words ---
    Cause(
        "gpu-error",
        "backend",
        r"\b(?P<api>CUDA|ROCm|HIP|MUSA|CANN|SYCL|OpenCL|rocBLAS|hipBLAS) error: (?P<said>[^\n]+)"
        r"|ggml_(?P<api_ggml>opencl|vulkan|metal|sycl|cann)\w*: (?:fatal )?error:? "
        r"(?P<said_ggml>[^\n]+)"
        r"|failed to initialize (?P<api_init>CUDA|ROCm|MUSA): (?P<said_init>[^\n]+)",
        "the GPU's driver reports an error ({api}: {said})",
        UPDATE,
        CPU_OVERRIDE,
    ),
    Cause(
        "gpu-error",
        "backend",
        r"vk::[\w:]+: (?P<said>Error\w+)|(?P<said_code>VK_ERROR_\w+)"
        r"|(?P<said_sycl>\b(?:(?:UR|ZE)_RESULT|PI)_ERROR_\w+)|(?P<said_native>Native API failed)"
        r"|(?P<said_hsa>HSA_STATUS_ERROR\w*)|(?P<said_fault>Memory access fault by GPU[^\n]*)"
        r"|(?P<said_metal>kIOGPUCommandBufferCallbackError\w+)|(?P<said_cl>CL_\w*(?:ERROR|FAILURE)\w*)"
        r"|(?P<said_cublas>CUBLAS_STATUS_\w+)",
        "the GPU's driver failed ({said})",
        UPDATE,
        CPU_OVERRIDE,
    ),
)
