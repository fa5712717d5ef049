"""The GPU, its driver and its kernels: asserts, bad addresses, hardware faults, drivers that do not fit."""

from __future__ import annotations

from gpuctl.watchdog import xids
from gpuctl.watchdog.signatures.signature import Weight, signature

_XID = r"\bXid\b \((?:PCI:)?[^)]*\): "
_OF_PROGRAMS = "|".join(map(str, xids.OF_PROGRAMS))
_NOT_HARDWARE = "|".join(map(str, [*xids.OF_PROGRAMS, *xids.OF_EITHER, *xids.NOISE]))

TABLE = (
    signature(
        "triton_out_of_resources",
        "resource shared_data shared_memory",
        r"out of resources?: (?:shared memory|registers?|tensor memory|threads)|\bOutOfResources\b",
        r"uses too much shared data|too many resources requested for launch",
        r"shared memory, required: \d+, hardware limit|shared memory size limit exceeded",
    ),
    signature(
        "xid_hw",
        "ecc off_the_bus lost hardware nvlink remap reset nvrm",
        r"uncorrectable ECC error(?!s?\s*:)|ECC_?UNCORRECTABLE|double[- ]bit ECC error (?:detected|occurred)",
        r"(?<!not )fallen off the bus|(?<!not )\bGPU[ _]is[ _]lost|cudaErrorHardwareStackError|hardware stack error",
        r"uncorrectable NVLink|cudaErrorNvlinkUncorrectable|nvlink error|row remapp\w+ (?:failure|failed)",
        r"GPU requires (?:a )?reset|NVRM: .{0,60}GPU (?:has been|is) (?:lost|hung)",
        bold=True,
    ),
    # What the program itself did to the GPU: a bad address, a trap; 45 is what its end leaves behind.
    signature("cuda_illegal_access", "xid", rf"{_XID}(?:{_OF_PROGRAMS})\b", weight=Weight.CONSEQUENCE, bold=True),
    signature("xid_hw", "xid", rf"{_XID}(?!(?:{_NOT_HARDWARE})\b)\d+\b", bold=True),
    signature(
        "driver_hung",
        "blocked_for_more nvrm rminitadapter initialize_nvml amdgpu gpu_hang",
        r"blocked for more than \d+ seconds.{0,80}nvidia|NVRM: .{0,60}(?:timeout waiting|hang\b)|RmInitAdapter failed",
        r"amdgpu\b.{0,60}(?:GPU reset|ring \S+ timeout)|\bHW Exception by GPU\b.{0,80}\bGPU hang",
        r"Failed to initialize NVML: (?:unknown|timeout)",
    ),
    signature(
        "device_assert",
        "assert",
        r"device-side assert triggered|CUDA_ERROR_ASSERT|hip_error_assert|device side assert",
        r"(?:cuda|hip)ErrorAssert(?!.{0,20} in https?:)",
        r"device-side assertion\b.{1,200} failed",
        r"\bblock: \[\d+,\s?\d+,\s?\d+\].{0,60}assert|\.(?:cuh?|hip):\d+: .{0,160}assertion .{1,200} failed",
    ),
    signature(
        "cuda_illegal_access",
        "illegal misaligned =launch_failed launch_failure launchfailure access_fault warp =invalid_pc program_counter"
        " illegaladdress",
        r"illegal memory access|illegal instruction was encountered|(?:cuda|hip)ErrorIllegal\w+|CUDA_ERROR_ILLEGAL_\w+",
        r"CUDA_ERROR_(?:LAUNCH_FAILED|MISALIGNED_ADDRESS|INVALID_PC)|misaligned address|unspecified launch failure",
        r"cudaErrorLaunchFailure|memory access fault by gpu|warp (?:illegal|out-of-range) address",
        r"invalid program counter",
    ),
    signature(
        "cuda_illegal_access",
        "hsa_status",
        r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|ILLEGAL_INSTRUCTION)",
        weight=Weight.CONSEQUENCE,
    ),
    signature(
        "driver_mismatch",
        "cuda_gpus hip_gpus nvidia_driver cuda-capable =error_no_device errornodevice insufficientdriver notready"
        " mismatch driver_version newer error_80 display_driver forward_compat kernel_image unsupported libcuda"
        " with_cuda cuda_unknown system_not_yet cuinit compatible_with nvidia-container device_type your_driver"
        " device_driver unsatisfied",
        r"no (?:CUDA|HIP) GPUs are available|found no NVIDIA driver|no CUDA-capable device|(?:CUDA_ERROR_NO_DEVICE)",
        r"cudaErrorNoDevice|cudaErrorInsufficientDriver|cudaErrorSystemNotReady|SYSTEM_DRIVER_MISMATCH",
        r"driver version is insufficient|NVIDIA driver on your system is too old",
        r"requires? (?:a )?newer (?:nvidia )?driver",
        r"Error 80[234]: |unsupported display driver|forward compatibility was attempted",
        r"driver/library version mismatch",
        r"no kernel image is available|PTX was compiled with an unsupported|unsupported gpu architecture",
        r"couldn't communicate with the NVIDIA driver|libcuda\.so\S*: cannot open|not compiled with CUDA enabled",
        r"CUDA unknown error - this may be due|system not yet initialized|failed call to cuInit: (?!.*out_of_memory)",
        r"is not compatible with the current PyTorch installation|failed to infer device type",
        r"nvidia-container-\w+: (?:\w+ )?error|unsatisfied condition: (?:cuda|driver|brand|arch)",
        r"(?:update|upgrade) your (?:gpu |nvidia |cuda )*driver|could not select device driver",
    ),
)
