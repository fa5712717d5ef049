"""Programs that fail on a real GPU, each in one of the ways that jobs fail. Sizes are shares of the card's memory."""

from __future__ import annotations

THREAD = """
import sys, threading, time, torch
total = torch.cuda.get_device_properties(0).total_memory
share = float(sys.argv[1])
def draft():
    keep = []
    for step in range(1, 5):
        keep.append(torch.empty(int(total * share), dtype=torch.uint8, device="cuda"))
        print(f"step {step}/4", flush=True)
        time.sleep(0.2)
    done.set()
done = threading.Event()
threading.Thread(target=draft, name="drafter-0").start()
while not done.wait(1):
    print("main: waiting for the drafter", flush=True)
"""

RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"[rank{rank}] up", flush=True)
if rank == 1:
    torch.empty(int(torch.cuda.get_device_properties(0).total_memory * 2), dtype=torch.uint8, device="cuda")
dist.barrier()
"""

NEEDS_MOST = """
import sys, time, os, torch
total = torch.cuda.get_device_properties(0).total_memory
torch.empty(1, device="cuda")
print("step 1/2", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
print("step 2/2", flush=True)
"""

NEIGHBOUR = """
import sys, time, torch
held = torch.empty(int(torch.cuda.get_device_properties(0).total_memory * 0.6), dtype=torch.uint8, device="cuda")
print("up", flush=True)
time.sleep(600)
"""

FRAGMENTS = """
import torch
total = torch.cuda.get_device_properties(0).total_memory
def take(share):
    return torch.empty(int(total * share), dtype=torch.uint8, device="cuda")
print("step 1/3", flush=True)
whole = take(0.92)
del whole
first, wall, second = take(0.42), take(0.01), take(0.42)
del first, second
print("step 2/3", flush=True)
take(0.7)
print("step 3/3", flush=True)
"""

ASSERT = """
import torch
table = torch.zeros(10, device="cuda")
table[torch.tensor([11], device="cuda")].sum().item()
"""

JAX = """
import jax.numpy as jnp
print("step 1/2", flush=True)
print((jnp.ones((1 << 20, 1 << 18), dtype=jnp.float32) + 1).sum())
"""

CUPY = """
import cupy
print("step 1/2", flush=True)
print(cupy.zeros(1 << 40, dtype=cupy.uint8).sum())
"""

SPIN = """
import torch
for step in range(1, 4):
    torch.ones(1, device="cuda").sum().item()
    print(f"step {step}/100", flush=True)
for _ in range(600):
    torch.cuda._sleep(10**9)
torch.cuda.synchronize()
"""

INPUT_BOUND = """
import time, torch
batch = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
until = time.monotonic() + 45
step = 0
while time.monotonic() < until:
    for _ in range(20):
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    step += 1
    print(f"step {step}/100000", flush=True)
"""

WORKER = """
import os, signal, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(4)
for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1)):
    batch.cuda()
    print(f"step {step}/25", flush=True)
"""

BAD_WRITE = """
import cupy
kernel = cupy.RawKernel("extern \\"C\\" __global__ void bad(int* p) { p[1ull << 40] = 1; }", "bad")
print("step 1/2", flush=True)
kernel((1,), (1,), (cupy.zeros(4, dtype=cupy.int32),))
cupy.cuda.Device().synchronize()
"""

HUNG = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
attempt = os.environ["GPUCTL_ATTEMPT"]
for step in range(1, 61):
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        b = a @ a
        torch.cuda.synchronize()
    if step == 30 and rank == 1 and attempt == "1":
        time.sleep(3600)
    dist.all_reduce(b)
    torch.cuda.synchronize()
    if rank == 0:
        print(f"step {step}/60", flush=True)
dist.destroy_process_group()
"""
"""One of two ranks does not come to the all-reduce; in the second attempt it does."""
