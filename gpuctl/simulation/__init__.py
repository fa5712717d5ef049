"""GPUs that exist only as files, and workloads on them that print what real jobs print.

A simulated GPU behaves as a real one where it matters to a watchdog: memory is held by living processes and comes back
when the last of them is gone, a forked child keeps a dead parent's memory, and whoever computes has the device files
open. So nothing in the rest of the program knows whether it looks at a simulation: the same supervisor, the same reaper
and the same proofs run over both.

`devices` is the state folder, `nvml` reads it as NVML would, `cuda` is memory as PyTorch sees it; the workloads are
modules to run (`python3 -m gpuctl.simulation.extraction`).
"""
