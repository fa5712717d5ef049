"""Logs of kinds that the rules must know, composed here from how each framework prints: class, fatal, reducible."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Wording(NamedTuple):
    name: str
    cls: Optional[str]
    fatal: bool
    reduced: bool
    log: str


_STEPS = "step 1/900 | loss 4.11\nstep 2/900 | loss 4.02\nstep 3/900 | loss 3.97\n"
_MORE = "step 4/900 | loss 3.90\nstep 5/900 | loss 3.86\nstep 6/900 | loss 3.81\n"
_HEAD = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 88, in train_step\n    loss.backward()\n'
_LOADER = (
    'Traceback (most recent call last):\n  File "/srv/job/serve.py", line 12, in <module>\n'
    "    model = AutoModelForCausalLM.from_pretrained(path).cuda()\n"
)
_TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 2 has a total capacity of 44.40 GiB of"
    " which 610.31 MiB is free. Including non-PyTorch memory, this process has 43.80 GiB memory in use. Of the allocated"
    " memory 42.10 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated.\n"
)

WORDINGS = [
    Wording("torch in a step", "gpu_oom", True, True, _STEPS + _HEAD + _TORCH),
    Wording("torch, first step, no sign of a phase", "gpu_oom", True, True, _TORCH),
    Wording("torch while loading", "gpu_oom_at_load", True, False, _LOADER + _TORCH),
    Wording("llama.cpp load", "gpu_oom_at_load", True, False,
        "llama_model_loader: loaded meta data with 24 key-value pairs\nload_tensors: loading model tensors, this can take a while\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 38110.51 MiB on device 0: cudaMalloc failed: out of memory\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\nllama_model_load_from_file_impl: failed to load model\n"),
    Wording("ggml while running", "gpu_oom", True, True,
        "slot launch_slot_: id 0 | task 12 | processing task\nCUDA error: out of memory\n"
        "  current device: 1, in function alloc at /src/ggml/src/ggml-cuda/ggml-cuda.cu:477\n  cuMemCreate(&handle, reserve_size, &prop, 0)\n"),
    Wording("jax", "gpu_oom", True, True,
        "step 10/500 | loss 2.2\nTraceback (most recent call last):\n  File \"/srv/t.py\", line 4, in train\n    state = step(state)\n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 3.50GiB (3758096384B) on device ordinal 3\n"),
    Wording("tensorflow 2", "gpu_oom", True, True,
        "Epoch 2/5\n 12/400 [....] - loss: 0.1\nTraceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    m.fit(d)\n"
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\n"
        "OOM when allocating tensor with shape[32,512,64,64] and type half on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc\n"),
    Wording("tensorrt build", "gpu_oom", True, True,
        "[06/01/2024-10:11:12] [TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)\n"
        "[TRT] [E] Requested amount of GPU memory (17179869184 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.\n"),
    Wording("xgboost", "gpu_oom", True, True,
        "xgboost.core.XGBoostError: [10:00:11] /ws/src/common/device_helpers.cuh:448: Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 1048576\n- Requested memory: 943718400\n"),
    Wording("numba", "gpu_oom", True, True,
        _HEAD + "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n"),
    Wording("mxnet", "gpu_oom", True, True,
        "mxnet.base.MXNetError: [11:02:03] src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory\n"),
    Wording("caffe", "gpu_oom", True, True,
        "I0101 solver.cpp:60] Solver scaffolding done.\nF0101 11:11:11.1 99 syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory\n*** Check failure stack trace: ***\n"),
    Wording("darknet", "gpu_oom", True, True, " 12: 4.1, 4.2 avg loss\nCUDA Error: out of memory\ndarknet: ./src/utils.c:325: error: Assertion `0' failed.\n"),
    Wording("onnxruntime", "gpu_oom", True, True,
        _HEAD + "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : CUDA failure 2: out of memory ; GPU=1 ; hostname=n1 ; expr=cudaMalloc\n"),
    Wording("sglang prefill", "gpu_oom", True, True,
        "[2025-05-01 10:00:01 TP0] Prefill out of memory. Try to lower your batch size.\n[2025-05-01 10:00:02] Received sigquit from a child process. It usually means the child failed.\n"),
    Wording("sglang static", "kv_cache_too_small", True, False,
        _HEAD + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"),
    Wording("vllm refuses", "gpu_oom_at_load", True, False,
        _HEAD + "ValueError: Free memory on device (10.11/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"),
    Wording("vllm kv", "kv_cache_too_small", True, False,
        "(EngineCore pid=11) ERROR 01-02 10:11:12 [core.py:700] ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.12 GiB). Based on the available memory, the estimated maximum model length is 74704.\n"),
    Wording("npu", "gpu_oom", True, True, _STEPS + _HEAD +
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity; 57.10 GiB already allocated; 58.00 GiB current active; 900.00 MiB free; 58.90 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n"),
    Wording("another process holds it", "gpu_oom", True, False, _STEPS + _HEAD +
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 100.00 MiB is free. Process 4711 has 76.00 GiB memory in use. Including non-PyTorch memory, this process has 3.00 GiB memory in use. Of the allocated memory 2.50 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.\n"),
    Wording("caught and retried", None, False, False, _STEPS + _HEAD + _TORCH + "halving the micro batch\n" + _MORE),
    Wording("numpy", "host_oom", True, False,
        _HEAD + "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 59.6 GiB for an array with shape (8000000, 1000) and data type float64\n"),
    Wording("memory error", "host_oom", True, False, _HEAD + "MemoryError\n"),
    Wording("torchrun sigkill", "host_oom", True, False,
        _STEPS + "E0101 10:11:12.000000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 201) of binary: /usr/bin/python3\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : -9 (pid: 201)\n  traceback : Signal 9 (SIGKILL) received by PID 201\n"),
    Wording("ray", "host_oom", True, False,
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1, ID: ab) where the task was running was 61.20GB / 62.00GB (0.98), which exceeds the memory usage threshold of 0.95.\n"),
    Wording("kernel", "host_oom", True, False,
        "[1234.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-1,mems_allowed=0,task=python,pid=9,uid=0\n[1234.6] Out of memory: Killed process 9 (python) total-vm:1kB\n"),
    Wording("bash killed", "host_oom", True, False, _STEPS + "run.sh: line 4:  1234 Killed                  python train.py --bs 8\n"),
    Wording("dataloader shm", "shm_exhausted", True, False,
        _HEAD + "RuntimeError: unable to open shared memory object </torch_1234_567_0> in read-write mode: No space left on device (28)\n"),
    Wording("disk", "disk_full", True, False, _STEPS + _HEAD + "OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt/step_10.pt'\n"),
    Wording("port", "port_in_use", True, False, _HEAD + "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"),
    Wording("gated", "auth_or_download", True, False,
        _HEAD + "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/a/b.\n401 Client Error: Unauthorized for url: https://huggingface.co/a/b/resolve/main/config.json\n"),
    Wording("dns", "auth_or_download", True, False,
        _HEAD + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError(\"Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)\"))\n"),
    Wording("safetensors", "checkpoint_corrupt", True, False, _LOADER + "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n"),
    Wording("gguf", "checkpoint_corrupt", True, False,
        "llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete\nllama_model_load_from_file_impl: failed to load model\n"),
    Wording("hdf5", "checkpoint_corrupt", True, False,
        _LOADER + "OSError: Unable to synchronously open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)\n"),
    Wording("illegal access in ranks", "cuda_illegal_access", True, False,
        _STEPS + "".join(f"[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File \"/srv/t.py\", line 9, in step\n[rank{r}]:     torch.cuda.synchronize()\n"
        f"[rank{r}]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n" for r in range(3))),
    Wording("assert", "device_assert", True, False,
        "/opt/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [9,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + _HEAD + "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`\n"),
    Wording("xid 79", "xid_hw", True, False, _STEPS + "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"),
    Wording("xid 63 goes on", "xid_hw", False, False, _STEPS + "kernel: NVRM: Xid (PCI:0000:3b:00): 63, pid=77, Row Remapper: New row marked for remapping\n" + _MORE),
    Wording("xid 45 is noise", None, False, False, _STEPS + "NVRM: Xid (PCI:0000:3b:00): 45, pid=77, name=python, Ch 00000010\n" + _MORE),
    Wording("driver too old", "driver_mismatch", True, False,
        _HEAD + "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver\n"),
    Wording("no kernel image", "driver_mismatch", True, False, _HEAD + "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"),
    Wording("nccl timeout", "nccl_timeout", True, False,
        _STEPS + "[rank1]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\nFatal Python error: Aborted\n"),
    Wording("gloo", "nccl_timeout", True, False, _HEAD + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n"),
    Wording("oom, then nccl in the others", "gpu_oom", True, True,
        _STEPS + "[rank2]: " + (_HEAD + _TORCH).replace("\n", "\n[rank2]: ").rstrip("[rank2]: ") + "\nstep 4/900 | loss 3.90\n"
        "[rank0]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"),
    Wording("nccl network", "nccl_error", True, False,
        "n1:12:34 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4444> with error 12, opcode 0, len 0, vendor err 129\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.hpp:301, remote process exited or there was a network error, NCCL version 2.20.5\n"),
    Wording("secondary only", "rank_failed_secondary", True, False,
        _STEPS + "[2024-01-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process 11 closing signal SIGTERM\n"
        "[2024-01-01 10:00:00,100] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 3 (pid: 14) of binary: /usr/bin/python\n"),
    Wording("triton", "triton_out_of_resources", True, False,
        _HEAD + "triton.runtime.errors.OutOfResources: out of resource: tensor memory, Required: 768, Hardware limit: 512. Reducing block sizes or `num_stages` may help.\n"),
    Wording("nan stop", "nan_loss", True, False, _STEPS + "Loss is nan, stopping training\n"),
    Wording("nan anomaly", "nan_loss", True, False, _HEAD + "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.\n"),
    Wording("nan goes on", "nan_loss", False, False, _STEPS + "step 4/900 | loss nan\nstep 5/900 | loss nan\nstep 6/900 | loss nan\n"),
    Wording("one nan step", None, False, False, _STEPS + "step 4/900 | loss nan\nstep 5/900 | loss 3.2\nstep 6/900 | loss 3.1\n"),
    Wording("scaler", "nan_loss", True, False, _HEAD + "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"),
    Wording("code", "code_error", True, False, _HEAD + "KeyError: 'labels'\n"),
    Wording("syntax", "code_error", True, False, '  File "/srv/job/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
    Wording("command not found", "code_error", True, False, "/tmp/job.sh: line 3: torchrunn: command not found\n"),
    Wording("argparse", "code_error", True, False, "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --bs 4\n"),
    Wording("segfault", "code_error", True, False, _STEPS + "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File \"/srv/t.py\", line 3 in step\nSegmentation fault (core dumped)\n"),
    Wording("slurm time", "timeout", True, False, _STEPS + "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2024-01-01T10:00:00 DUE TO TIME LIMIT ***\n"),
    Wording("thread", "thread_died", False, False,
        _STEPS + 'Exception in thread Thread-5 (prefetch):\nTraceback (most recent call last):\n  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
        '  File "/srv/data.py", line 9, in prefetch\n    raise ValueError("bad shard")\nValueError: bad shard\nwaiting for data\n'),
    Wording("thread with oom, rest goes on", "gpu_oom", False, True,
        _STEPS + 'Exception in thread drafter-0:\nTraceback (most recent call last):\n  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
        '  File "/srv/d.py", line 9, in work\n    logits = head(x)\n' + _TORCH + "target loop alive\n"),
    # What looks like trouble and is not.
    Wording("help text", None, False, False, "usage: serve [options]\n  --retry-on-oom     retry with half the batch when CUDA runs out of memory\n  --max-split MB     avoids fragmentation\n"),
    Wording("advice", None, False, False, "INFO trainer: if you see CUDA out of memory, lower --batch-size\n" + _STEPS),
    Wording("names with error", None, False, False, "step 1/9 | error rate 0.4 | killed units 3\nstep 2/9 | error rate 0.3 | killed units 2\nstep 3/9 | mean squared error: 0.1\n"),
    Wording("import warning", None, False, False, "UserWarning: Failed to load image Python extension: libpng16.so.16\n  warn(\n" + _STEPS),
    Wording("flash fallback", None, False, False, "WARNING: No module named 'flash_attn', falling back to sdpa\n" + _STEPS),
    Wording("nccl info", None, False, False, "n1:1:2 [0] NCCL INFO NET/IB : No device found.\nn1:1:2 [0] NCCL INFO Using network Socket\n" + _STEPS),
    Wording("retried download", None, False, False, "WARNING 429 Client Error: Too Many Requests for url: https://huggingface.co/a. Retrying in 1s [Retry 1/5].\n" + _STEPS),
    Wording("ports", None, False, False, "Port 6006 is in use, trying another one.\nServing TensorBoard on http://localhost:6007/\n" + _STEPS),
    Wording("deepspeed overflow", None, False, False, "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n" + _STEPS),
    Wording("graceful end", None, False, False, _STEPS + "Training complete. Peak memory 70.1 GiB, 0 OOM retries, 0 failed batches.\n"),
    Wording("vllm preempts", None, False, False,
        "WARNING 01-01 10:00:00 [scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance.\n"
        "INFO 01-01 10:00:05 [metrics.py:455] Avg prompt throughput: 10.1 tokens/s, Avg generation throughput: 101.0 tokens/s\n"),
    Wording("sigterm at the end", None, False, False, _STEPS + "received SIGTERM, saving a checkpoint\nsaved\n"),
    Wording("eval of a log model", None, False, False, "step 3/9 | sampling\n=== generated text ===\n" + _TORCH + "=== end of generated text ===\nstep 4/9 | loss 1.0\nstep 5/9 | loss 1.0\n"),
    Wording("no errors found", None, False, False, "preflight: no Xid errors, no ECC errors, NCCL all_reduce test passed, disk 40% full\n" + _STEPS),
    Wording("grep count", None, False, False, "checked 12 logs: 0 with 'CUDA out of memory', 0 with 'Killed'\n" + _STEPS),
]  # fmt: skip
