"""vLLM as an engine process and eight tensor-parallel workers: its log lines, its memory, and its way of dying.

The engine forks the workers, loads shard by shard, and runs forward passes. A worker's exception is logged by the
worker, again by the engine, and reaches the caller as `EngineDeadError`: the first is the cause, the rest is cascade.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from multiprocessing.connection import Connection
from typing import Any, List, Sequence, Tuple

from gpuctl.simulation import model
from gpuctl.simulation.console import Pace, ShardBar, say, say_traceback, stamp
from gpuctl.simulation.cuda import GIB, Gpu, OutOfMemoryError

VERSION = "0.11.0"
WARM_UP_S = 41.72
FORK = multiprocessing.get_context("fork")


class EngineDeadError(RuntimeError):
    """What the caller of a dead engine gets."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")


EngineDeadError.__module__ = "vllm.v1.engine.exceptions"


class Engine:
    """The caller's end: loads the model, then runs batches."""

    def __init__(self, max_seq_len: int, pace: Pace) -> None:
        self._connection, theirs = FORK.Pipe()
        self._process = FORK.Process(
            target=_run_engine, args=(theirs, self._connection, max_seq_len, pace), name="EngineCore_DP0"
        )
        self._process.start()
        theirs.close()
        self._receive()

    def forward(self, batch_size: int, max_seq_len: int, tokens: int) -> None:
        """One forward pass. Raises `EngineDeadError`."""
        self._connection.send((batch_size, max_seq_len, tokens))
        self._receive()

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _receive(self) -> None:
        try:
            well = self._connection.recv()
        except EOFError:
            well = False
        if not well:
            self._process.join()
            raise EngineDeadError


class Output:
    """One process's lines: `(EngineCore_DP0 pid=4201) INFO 11-29 15:46:07 [core.py:77] …`"""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def who(self) -> str:
        return f"({self._name} pid={os.getpid()}) "

    def info(self, place: str, text: str) -> None:
        say(f"{self.who}INFO {stamp()} [{place}] {text}")

    def error(self, place: str, text: str) -> None:
        say(f"{self.who}ERROR {stamp()} [{place}] {text}")

    def traceback(self, place: str) -> None:
        say_traceback(f"{self.who}ERROR {stamp()} [{place}] ")


def _run_engine(caller: Connection, callers_end: Connection, max_seq_len: int, pace: Pace) -> None:
    callers_end.close()
    _name_process("VLLM::EngineCore")
    out = Output("EngineCore_DP0")
    out.info("core.py:77", f"Initializing a V1 LLM engine (v{VERSION}) with tensor_parallel_size={model.RANKS}")
    workers: List[Tuple[Any, Connection]] = []
    for rank in range(model.RANKS):
        ours, theirs = FORK.Pipe()
        inherited = [caller, ours, *(connection for _, connection in workers)]
        worker = FORK.Process(target=_run_worker, args=(rank, theirs, inherited, pace), name=f"Worker_TP{rank}")
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        _tell(workers, "load")
        out.info("kv_cache_utils.py:1087", f"GPU KV cache size: {model.kv_cache_tokens():,} tokens")
        concurrency = model.kv_cache_tokens() / max_seq_len
        out.info(
            "kv_cache_utils.py:1091", f"Maximum concurrency for {max_seq_len:,} tokens per request: {concurrency:.2f}x"
        )
        pace.take(WARM_UP_S)
        out.info("core.py:210", f"init engine (profile, create kv cache, warmup model) took {WARM_UP_S:.2f} seconds")
        caller.send(True)
        while True:
            _tell(workers, caller.recv())
            caller.send(True)
    except EOFError:
        return  # the caller has closed its end, or is gone
    except RuntimeError:
        out.error("core.py:710", "EngineCore encountered a fatal error.")
        out.traceback("core.py:710")
        raise  # the process prints it once more, under its own name
    finally:
        for worker, connection in workers:
            connection.close()
            worker.terminate()
        for worker, _ in workers:
            worker.join()


def _tell(workers: Sequence[Tuple[Any, Connection]], order: Any) -> None:
    """Gives all workers an order and waits for all; raises what the first of them failed with."""
    for _, connection in workers:
        connection.send(order)
    for _, connection in workers:
        trouble = connection.recv()
        if trouble is not None:
            raise RuntimeError(
                f"Worker failed with error '{trouble}', please check the stack trace above for the root cause"
            )


def _run_worker(rank: int, engine: Connection, inherited: Sequence[Connection], pace: Pace) -> None:
    for connection in inherited:
        connection.close()  # else no worker would see the engine's end close
    _name_process(f"VLLM::Worker_TP{rank}")
    worker = Worker(rank, pace)
    while True:
        try:
            order = engine.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            if order == "load":
                worker.load()
            else:
                worker.execute_model(*order)
        except OutOfMemoryError as error:
            worker.out.error("multiproc_executor.py:671", "WorkerProc hit an exception.")
            worker.out.traceback("multiproc_executor.py:671")
            engine.send(str(error))
        else:
            engine.send(None)


class Worker:
    """One tensor-parallel rank on its GPU. Rank 0 also captures what the extraction is after."""

    def __init__(self, rank: int, pace: Pace) -> None:
        self.rank = rank
        self.out = Output(f"Worker_TP{rank}")
        self._pace = pace
        self._gpu = Gpu(rank, split_mib=model.SPLIT_MIB)
        self._workspace_bytes = 0  # of one scale tensor; kept from batch to batch, as the caching allocator does

    def load(self) -> None:
        """Shard by shard; then what profiling leaves becomes the KV cache."""
        self.out.info("gpu_model_runner.py:2602", "Starting to load model /models/verifier-1t-int4...")
        self._gpu.load(0.18, 3)
        bar = ShardBar("Loading safetensors checkpoint shards", model.SHARDS, self._pace) if self.rank == 0 else None
        chance = random.Random(64)
        for _ in range(model.SHARDS):
            self._gpu.allocate("weights", model.WEIGHT_BYTES // model.SHARDS)
            self._pace.take(model.shard_seconds(chance))
            if bar is not None:
                bar.advance()
        weights = model.WEIGHT_BYTES / GIB
        self.out.info(
            "gpu_model_runner.py:2653", f"Model loading took {weights:.4f} GiB and {self._pace.elapsed_s():.2f} seconds"
        )
        self._gpu.allocate("kv cache", model.KV_CACHE_BYTES)
        self._gpu.allocate("graphs", model.GRAPH_BYTES)
        self.out.info("gpu_worker.py:298", f"Available KV cache memory: {model.KV_CACHE_BYTES / GIB:.2f} GiB")
        self._gpu.load(0.17, 0)

    def execute_model(self, batch_size: int, max_seq_len: int, tokens: int) -> None:
        self._gpu.load(0.74, 98)
        if self.rank == 0:
            self.capture_hidden_states(batch_size, max_seq_len)
        self._pace.take(model.batch_seconds(tokens))

    def capture_hidden_states(self, batch_size: int, max_seq_len: int) -> None:
        needed = model.scale_bytes(batch_size, max_seq_len)
        if needed <= self._workspace_bytes:
            return
        self._gpu.free("workspace")
        self._gpu.allocate("workspace", model.prefill_bytes(batch_size, max_seq_len))
        for _ in range(model.LAYERS * model.SCALES_PER_LAYER):
            self._gpu.allocate("workspace", needed)
        self._workspace_bytes = needed


def _name_process(name: str) -> None:
    """As setproctitle does, as far as the kernel's 15 characters go."""
    if sys.platform == "linux":
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(name)
