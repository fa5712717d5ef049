"""The GPU, its driver and its kernels: asserts, bad addresses, hardware faults, drivers that do not fit."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

TABLE = (
    signature(
        "triton_out_of_resources",
        r"out of resources?: (?:shared memory|registers?|tensor memory|threads)|\bOutOfResources\b|uses too much shared data|too many resources requested for launch",
        "resource|shared data",
    ),
    signature(
        "xid_hw",
        r"uncorrectable ECC error|ECC_?UNCORRECTABLE|double[- ]bit ECC error (?:detected|occurred)|(?<!not )fallen off the bus|GPU[ _]is[ _]lost"
        r"|cudaErrorHardwareStackError|hardware stack error|uncorrectable NVLink|cudaErrorNvlinkUncorrectable|row remapp\w+ (?:failure|failed)"
        r"|GPU requires (?:a )?reset|GPU reset required|NVRM: .{0,60}GPU (?:has been|is) (?:lost|hung)",
        "ecc|off the bus|lost|hardware|nvlink|remap|reset|nvrm",
        bold=True,
    ),
    signature("cuda_illegal_access", r"\bXid\b.{0,40}\): (?:13|31|43)\b", "xid", Weight.CONSEQUENCE, bold=True),
    signature("xid_hw", r"\bXid\b \(PCI:[^)]*\): (?!(?:13|31|43|45),)\d+,", "xid", scope="finding", bold=True),
    signature(
        "driver_hung",
        r"blocked for more than \d+ seconds.{0,80}nvidia|NVRM: .{0,60}(?:timeout waiting|hang)|RmInitAdapter failed|Failed to initialize NVML: (?:unknown|timeout)",
        "blocked for more|nvrm|rminitadapter|initialize nvml",
    ),
    signature(
        "device_assert",
        r"device-side assert triggered|CUDA_ERROR_ASSERT|(?:cuda|hip)ErrorAssert(?!.{0,20} in https?:)|\bblock: \[\d+,\d+,\d+\].{0,60}assert"
        r"|:\d+: .{0,120}Assertion `.{1,200}` failed",
        "assert",
    ),
    signature(
        "cuda_illegal_access",
        r"illegal memory access|illegal (?:address|instruction)(?: was encountered)?|cudaErrorIllegal\w+|CUDA_ERROR_ILLEGAL_\w+|misaligned address"
        r"|CUDA_ERROR_(?:LAUNCH_FAILED|MISALIGNED_ADDRESS|INVALID_PC)|unspecified launch failure|cudaErrorLaunchFailure|memory access fault by gpu"
        r"|hipErrorIllegalAddress|warp (?:illegal|out-of-range) address|invalid program counter",
        "illegal|misaligned|launch_failed|launch failure|launchfailure|access fault|warp|invalid_pc|program counter",
    ),
    signature(
        "driver_mismatch",
        r"no CUDA GPUs are available|found no NVIDIA driver|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|no HIP GPUs are available"
        r"|driver version is insufficient|NVIDIA driver on your system is too old|Error 80[234]: |unsupported display driver|forward compatibility was attempted"
        r"|driver/library version mismatch|SYSTEM_DRIVER_MISMATCH|no kernel image is available|PTX was compiled with an unsupported"
        r"|couldn't communicate with the NVIDIA driver|libcuda\.so\S*: cannot open|not compiled with CUDA enabled|CUDA unknown error - this may be due"
        r"|system not yet initialized|cudaErrorInsufficientDriver|cudaErrorSystemNotReady|requires? (?:a )?newer (?:nvidia )?driver|unsupported gpu architecture"
        r"|is not compatible with the current PyTorch installation|failed call to cuInit: (?!.*out_of_memory)",
        "cuda|driver|kernel image|ptx|gpu|system not yet|pytorch installation|cuinit",
    ),
)
