"""GPU memory ran out, in the words of each framework; and the KV caches that did not fit.

The shape of an error is asked for (an allocator's whole sentence, an exception's name, an API's status), never the bare
words "out of memory": help texts, tests, prompts and cautious start-up messages hold those.
"""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

_NO = r"(?:no|not enough|insufficient|no enough|not sufficient)"
_CANNOT = r"(?:fail(?:ed|ure)?|unable|impossible|cannot|can't|could not|couldn't|error)"
_ERROR = r"(?:[\w.]*(?:Error|Exception)(?:\(\d+\))?: |error: |fatal: |what\(\): +)"
_API = r"\b(?:cuda|hip|rocm|cublas|cudnn|musa|npu|sycl|level.?zero)\w*[ _]?(?:runtime |driver |api )?"

KV_CACHE = (
    signature(
        "kv_cache_too_small",
        "not_enough_memory_to_handle --max-batch-",
        r"not enough memory to handle \d+ (?:total|prefill) tokens",
        r"decrease `?--max-batch-(?:total|prefill)-tokens",
        reduce=True,  # TGI: the token budget of a batch is the very knob that it names
    ),
    signature(
        "kv_cache_too_small",
        "cache kv --mem-fraction gpu_memory_for enough_blocks",
        rf"{_NO} (?:available |free )?(?:gpu )?(?:memory|space|blocks?|room)[^.]{{0,40}}?\b(?:kv[- _]?cache"
        rf"|cache blocks|paged kv)",
        r"larger than the (?:maximum number of tokens that can be stored in|available) kv[- ]?cache",
        r"kv[- ]?cache (?:memory )?(?:is )?(?:needed|required),? (?:which is |but )?(?:larger|more|only)",
        rf"{_CANNOT} (?:to )?(?:allocate|create|init\w*|fit|reserve)[^.]{{0,40}} kv[- _]?cache",
        r"not enough memory\W{1,3}please try (?:to )?(?:increas|lower)\w+ --mem-fraction",
        r"(?:tokens?|blocks?)\b.{0,40}\bkv[- _]?cache\b.{0,60}(?:less|smaller|insufficient|too small|not enough)",
        r"kv[- _]?cache (?:pool |size |memory )?(?:is )?(?:too small|exhausted|not (?:sufficient|enough))",
        r"gpu memory for (?:kv|runtime)|\[BlockManager\] no enough blocks",
    ),
)

PINNED = (
    signature("code_error", "1eb_memory", r"tried to allocate more than 1EB memory"),  # a size that went wrong
    signature(
        "host_oom",
        "on_host pinned hostalloc",
        r"failed to alloc\w* .{1,40} on host\b",
        r"(?:fail\w*|could not|unable to|cannot) (?:to )?alloc\w* pinned host memory",
        r"cu\w*HostAlloc\b.{0,60}(?:fail|out[ _]of[ _]memory)",
        weight=Weight.CONSEQUENCE,
    ),
)

AT_LOAD = (
    signature(
        "gpu_oom_at_load",
        "less_than_desired_gpu_memory",
        r"free memory on device .{0,60}on startup is less than desired gpu memory utilization",  # vLLM's refusal
        phase="load",
    ),
    signature(
        "gpu_oom_at_load",
        "memory =out_of_memory memoryallocation",
        r"cu(?:Device)?(?:PrimaryCtxRetain|CtxCreate\w*)\b.{0,60}(?:out[ _]of[ _]memory|MemoryAllocation)",
        r"(?:creat|initiali[sz])\w+ (?:the |a )?(?:cuda |device |primary )?context.{0,60}out[ _]of[ _]memory",
        r"\b(?:cudaSetDevice|cuInit|driver init)\b.{0,60}out[ _]of[ _]memory",
        phase="load",
    ),
    signature(
        "gpu_oom_at_load",
        "too_large too_big load than_available than_is_available vram insufficient",
        r"(?:model|engine|weights?) (?:is|are) too (?:large|big) (?:for|to fit)",
        rf"{_NO} (?:gpu |device )?(?:memory|vram) (?:to load|(?:in split )?for (?:the )?(?:model|weights))",
        r"(?:creation|initiali[sz]ation|start-?up|loading)(?: has)? failed.{0,40}insufficient (?:gpu |device )?memory",
        r"unable to load model .{0,80}(?:vram|memory)",
        r"(?:requires|needs) more (?:vram|gpu memory) than (?:is )?available",
        phase="load",
    ),
)

GPU = (
    signature("gpu_oom", "executable_batch_size", r"no executable batch size found", reduce=False),
    signature(
        "gpu_oom",
        "out_of_memory",
        r"out of memory occurred (?:when|while|during) (?:warming up|profiling|capturing|running)",
        r"(?:prefill|decode) out of memory\W+try to lower",
        reduce=True,  # these name the batch's knob
        phase="load",
    ),
    signature(
        "gpu_oom",
        "not_a_failure from_device ran_out_of_memory_trying",
        r"allocator .{0,120}the caller indicates that this is not a failure",
        # StreamExecutor tries smaller pools
        r"failed to allocate .{1,60} from device:"
        r" .{0,40}CUDA_ERROR_OUT_OF_MEMORY",
        r"(?:bfc_allocator|allocator \(gpu\w*\)).{0,40}ran out of memory trying to allocate",
        weight=Weight.PROBE,
    ),
    signature(
        "gpu_oom",
        "tried_to_allocate allocation_on_device",
        r"out of memory\b.{0,160}?tried to allocate",
        r"allocation on device ?\d* would exceed allowed memory|OutOfMemoryError: allocation on device",
    ),
    signature("gpu_oom", "=nvml_success", r"NVML_SUCCESS == r INTERNAL ASSERT FAILED"),  # PyTorch 2.x on MIG
    signature(
        "gpu_oom",
        "memory cudaerror hiperror =out_of alloc errorout",
        rf"{_API}(?:error|failure|check ?fail\w*|err|fail(?:ed)?)\b.{{0,160}}?\bout[ _]of[ _]memory",
        r"cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|\bOUT_OF_DEVICE_MEMORY\b",
        r"\b(?:cu|cuda|hip)(?:mem|malloc)\w*\b.{0,80}(?:out[ _]of[ _]memory|failed)",
        r"GpuLaunchKernel\b.{0,160}\bout of memory",
        r"check failed: .{0,80}cuda\w* .{0,60}out of memory|error=2 : out of memory",
        r"memory object allocation failure|ErrorOutOf(?:Device|Pool)Memory",
        r"CL_MEM_OBJECT_ALLOCATION_FAILURE|HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        r"\.cuh?\b.{0,60}\bout of memory|\bout of memory\b.{0,80}\.cuh?\b(?!/)",  # a kernel's source names the line
    ),
    signature("gpu_oom", "calloc malloc", r"failed to (?:cuda|hip) (?:c|m)alloc\w* \d+ bytes"),  # NCCL
    signature(
        "gpu_oom",
        "=alloc_failed",
        r"\bCU(?:DNN|BLAS(?:LT)?|SOLVER|SPARSE|RAND)_STATUS_ALLOC(?:ATION)?_FAILED|CUFFT_ALLOC_FAILED",
        bold=True,
    ),
    signature(
        "gpu_oom",
        "exhausted oom_when runtimeerror memory_space",
        r"RESOURCE_?EXHAUSTED.{0,60}(?:out of memory|failed to allocate|attempting to (?:allocate|reserve))",
        r"(?:ResourceExhausted\w*|resource exhausted).{0,80}\bOOM\b|\bOOM when allocating",
        r"RESOURCE_?EXHAUSTED.{0,60}\b(?:hbm|vmem|allocat\w+ \d+ bytes)",
        r"(?:Xla|Jax)RuntimeError: .{0,60}failed to allocate \d|ran out of memory in memory space \w+",
        bold=True,  # TensorFlow logs the operation that failed at W, before it raises
    ),
    signature(
        "gpu_oom",
        "out_of_memory memory_on_gpu",
        r"out of memory (?:to allocate|allocating) [\d,]+ bytes",  # CuPy
        r"out of memory error on GPU|cannot allocate \S+ memory on GPU",  # Paddle
        r"\bout of memory on (?:gpu|device)\b|\bout of memory\W{1,3}requested \d",
    ),
    signature(
        "gpu_oom",
        "requested_buffer rmm gpu_memory error_code_2 bad_alloc video_memory device_memory vram out_of_memory",
        r"(?:BFCArena|cuda|gpu).{0,200}failed to allocate memory for requested buffer",  # ONNX Runtime
        r"RMM failure|rmm::(?:out_of_memory|bad_alloc)|std::bad_alloc.{0,40}cuda|cuda.{0,40}std::bad_alloc",
        r"requested amount of GPU memory .{0,30}could not be allocated|error code 2: out ?of ?memory",  # TensorRT
        r"insufficient gpu memory|not enough (?:gpu|video) (?:video )?memory|out of vram",
        r"ran out of (?:gpu |video )memory",
        rf"{_ERROR}.{{0,80}}\bout of (?:gpu|device|video) memory|gpu (?:is |ran )?out of memory",
    ),
    signature(
        "gpu_oom",
        "alloc",
        rf"{_CANNOT} (?:to )?(?:re)?alloc\w* .{{0,20}}(?:cuda\d*|rocm\d*|vulkan\d*|gpu|device|vram)\b",  # llama.cpp
        r"gpu_allocate.{0,40}failed|device memory allocation .{0,20}failed",
    ),
    signature(
        "gpu_oom",
        "outofmemory out_of_memory",
        r"^(?!java)\(?(?:\w+(?:\.|::))*(?:T?OutOfMemoryError|CUDAOutOfMemoryError|OutOfMemoryException)\b"
        r"(?!.{0,60}(?:heap|java|metaspace|node running low))",
        rf"^(?!java){_ERROR}?(?:cuda|hip|gpu|xpu|npu|mps)\w* ?(?:backend )?(?:is |ran )?out of memory\b",
    ),
)

TABLE = PINNED + KV_CACHE + AT_LOAD + GPU
