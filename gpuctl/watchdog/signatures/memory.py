"""GPU memory ran out, in the words of each framework; and the KV caches that did not fit.

The shape of an error is asked for (an allocator's whole sentence, an exception's name, an API's status), never the bare
words "out of memory": help texts, tests, prompts and cautious start-up messages hold those.
"""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

KV_CACHE = (
    signature(
        "kv_cache_too_small",
        r"not enough memory to handle \d+ (?:total|prefill) tokens|decrease `?--max-batch-(?:total|prefill)-tokens",
        "not enough memory to handle|--max-batch-",
        reduce=True,  # TGI: the token budget of a batch is the knob that it names
    ),
    signature(
        "kv_cache_too_small",
        r"(?:no|not enough|insufficient|no enough) (?:available )?(?:gpu )?(?:memory|space|blocks?) (?:available )?(?:for|to allocate|left for|in|to (?:hold|fit|create|build)) (?:the )?(?:kv[- ]?cache|(?:gpu )?cache blocks|paged)"
        r"|larger than the (?:maximum number of tokens that can be stored in|available) kv cache"
        r"|kv[- ]cache (?:memory )?(?:is )?(?:needed|required),? (?:which is |but )?(?:larger|more|only)"
        r"|(?:failed|unable|cannot|can't|could not) to (?:allocate|create|init\w*|fit|reserve)[^.]{0,40} kv[- ]?cache"
        r"|not enough memory\W{1,3}please try (?:to )?(?:increas|lower)\w+ --mem-fraction"
        r"|(?:max_?num_?tokens|number of blocks|tokens?) in (?:paged )?kv[- ]?cache .{0,60}(?:less|smaller|insufficient|too small)"
        r"|kv[- ]?cache (?:pool |size )?(?:is )?(?:too small|exhausted)|no (?:enough )?gpu memory for (?:kv|runtime)",
        "cache|kv|--mem-fraction|gpu memory for",
    ),
)

AT_LOAD = (
    signature(
        "gpu_oom_at_load",
        r"free memory on device .{0,60}on startup is less than desired gpu memory utilization",
        "less than desired gpu memory",
        phase="load",
    ),
    signature(
        "gpu_oom_at_load",
        r"(?:cu(?:Device)?(?:PrimaryCtxRetain|CtxCreate\w*)|(?:create|creating|initiali[sz]\w+) (?:the )?(?:cuda |device )?context|cudaSetDevice)"
        r".{0,80}(?:out[ _]of[ _]memory|MemoryAllocation)",
        "out of memory|out_of_memory|memoryallocation",
        phase="load",
    ),
    signature(
        "gpu_oom_at_load",
        r"(?:model|engine|weights?) (?:is|are) too (?:large|big) (?:for|to fit)|insufficient (?:gpu |device )?memory to load"
        r"|unable to load model .{0,80}(?:vram|memory)|(?:requires|needs) more (?:vram|gpu memory) than (?:is )?available",
        "too large|too big|to load|load model|than available|than is available",
        phase="load",
    ),
)

GPU = (
    signature("gpu_oom", r"no executable batch size found", "executable batch size", reduce=False),
    signature(
        "gpu_oom",
        r"out of memory occurred (?:when|while|during) (?:warming up|profiling|capturing|running)|(?:prefill|decode) out of memory\W+try to lower",
        "out of memory occurred|prefill out of memory|decode out of memory",
        reduce=True,
        phase="load",
    ),
    signature(
        "gpu_oom",
        r"allocator .{0,80}the caller indicates that this is not a failure"
        r"|failed to allocate .{1,60} from device: .{0,40}CUDA_ERROR_OUT_OF_MEMORY"  # StreamExecutor tries smaller pools
        r"|(?:bfc_allocator|allocator \(gpu\w*\)).{0,40}ran out of memory trying to allocate",
        "not a failure|from device|ran out of memory trying",
        Weight.PROBE,
    ),
    signature(
        "gpu_oom",
        r"out of memory\b.{0,160}?tried to allocate|allocation on device ?\d* would exceed allowed memory|OutOfMemoryError: allocation on device",
        "tried to allocate|allocation on device",
    ),
    signature("gpu_oom", r"NVML_SUCCESS == r INTERNAL ASSERT FAILED", "nvml_success == r"),  # PyTorch 2.x on MIG
    signature(
        "gpu_oom",
        r"\b(?:cuda|hip|rocm|cublas|musa|npu|sycl)\w*[ _]?(?:runtime |driver |api )?(?:error|failure|check ?fail\w*|err|fail)\b.{0,160}?\bout[ _]of[ _]memory"
        r"|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
        r"|\b(?:cu|cuda|hip)(?:mem|malloc|host)\w*\b.{0,80}(?:out[ _]of[ _]memory|failed)"
        r"|check failed: .{0,80}cuda\w* .{0,60}out of memory|error=2 : out of memory"
        r"|ErrorOutOf(?:Device|Pool)Memory|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_RESOURCES",
        "memory|alloc|cl_out_of_resources|cuda",
    ),
    signature("gpu_oom", r"failed to (?:cuda|hip) (?:c|m)alloc\w* \d+ bytes", "alloc"),
    signature(
        "gpu_oom",
        r"\bCU(?:DNN|BLAS(?:LT)?|SOLVER|SPARSE|RAND)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED",
        "alloc_failed",
        bold=True,
    ),
    signature(
        "gpu_oom",
        r"RESOURCE_?EXHAUSTED.{0,60}(?:out of memory|failed to allocate|attempting to allocate|ran out of memory|memory space hbm)"
        r"|(?:ResourceExhausted\w*|resource exhausted).{0,80}\bOOM\b|\bOOM when allocating",
        "exhausted|oom when",
        bold=True,  # TensorFlow logs the operation that failed at W, before it raises
    ),
    signature(
        "gpu_oom",
        r"out of memory (?:to allocate|allocating) [\d,]+ bytes|out of memory error on GPU|cannot allocate \S+ memory on GPU",
        "out of memory|memory on gpu",
    ),
    signature(
        "gpu_oom",
        r"(?:BFCArena|cuda|gpu).{0,200}failed to allocate memory for requested buffer|RMM failure|rmm::(?:out_of_memory|bad_alloc)"
        r"|requested amount of GPU memory .{0,30}could not be allocated|error code 2: out ?of ?memory|std::bad_alloc.{0,40}cuda"
        r"|insufficient gpu memory|not enough gpu (?:video )?memory|out of (?:gpu|device|video) memory|out of vram|gpu (?:is |ran )?out of memory",
        "requested buffer|rmm|gpu memory|error code 2|bad_alloc|video memory|device memory|vram|gpu",
    ),
    signature(
        "gpu_oom",
        r"(?:failed|unable|cannot|could not|error) (?:to )?(?:re)?alloc\w* .{0,20}(?:cuda\d*|rocm\d*|vulkan\d*|gpu|device|vram)\b",
        "alloc",
    ),
    signature(
        "gpu_oom",
        r"^(?:\w+\.)*(?:OutOfMemoryError|CUDAOutOfMemoryError|OutOfMemoryException)\b(?!.{0,60}(?:heap|java|metaspace|node running low))"
        r"|^(?!java)(?:[\w.]*(?:Error|Exception)(?:\(\d+\))?: |error: |fatal: |terminate.{0,80}|what\(\): +)?(?:cuda|hip|gpu|xpu|npu|mps)\w* ?(?:backend )?(?:is |ran )?out of memory\b",
        "outofmemory|out of memory",
    ),
)

TABLE = KV_CACHE + AT_LOAD + GPU
