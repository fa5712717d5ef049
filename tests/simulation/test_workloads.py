"""The simulated jobs fail and succeed as the real ones did, and what they print adds up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuctl.simulation.devices import SimulatedGpus
from gpuctl.wire.nodespec import Simulate
from tests.parts.gpus import holding, workload_environment
from tests.waiting import wait_until

MIB = 1 << 20
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
SIZE = r"([\d.]+ (?:bytes|[KMG]iB))"
MESSAGE = re.compile(
    rf"^(?P<prefix>.*)torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate {SIZE}\. GPU (?P<gpu>\d+) has a"
    rf" total capacity of {SIZE} of which {SIZE} is free\. Including non-PyTorch memory, this process has {SIZE} memory"
    rf" in use\. Of the allocated memory {SIZE} is allocated by PyTorch, and {SIZE} is reserved by PyTorch but"
    r" unallocated\.",
    re.MULTILINE,
)


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedGpus:
    return SimulatedGpus.make(str(tmp_path / "gpus"), Simulate(gpus=8))


def workload(gpus: SimulatedGpus, module: str, *arguments: object, visible: str | None = None) -> tuple[int, str]:
    """Exit code and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"gpuctl.simulation.{module}", *map(str, arguments)],
        env=workload_environment(gpus.folder, visible=visible),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@contextmanager
def running(gpus: SimulatedGpus, log: Path, module: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A workload with a log file, as a supervisor starts it; its whole session is gone at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", f"gpuctl.simulation.{module}", *map(str, arguments)],
            env=workload_environment(gpus.folder),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def bytes_of(size: str) -> float:
    figure, unit = size.split()
    return float(figure) * UNITS[unit]


def sizes(text: str) -> dict[str, float]:
    """The numbers of the first out-of-memory message, checked to be consistent among themselves."""
    message = MESSAGE.search(text)
    assert message is not None, text[-2000:]
    names = ("requested", "capacity", "free", "in_use", "allocated", "reserved")
    printed = [message.group(index) for index in (2, 4, 5, 6, 7, 8)]
    found = dict(zip(names, map(bytes_of, printed), strict=True))
    rounding = 0.01 * UNITS["GiB"] * 1.5
    assert found["requested"] > found["free"]
    assert abs(found["capacity"] - found["free"] - found["in_use"]) < rounding
    context = found["in_use"] - found["allocated"] - found["reserved"]
    assert abs(context - 518 * MIB) < rounding
    return {**found, "gpu": float(message["gpu"])}


class TestExtraction:
    FAST = ("--speed", "3000")

    def test_the_batch_that_was_no_batch(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        code, text = workload(gpus, "extraction", "--batch-size", 2000, "--output-dir", tmp_path / "out", *self.FAST)
        assert code == 1
        assert "Loaded 1,000 samples, 503,713 tokens" in text
        assert text.count("Loading safetensors checkpoint shards:") == 65
        assert "100% Completed | 64/64 [" in text
        found = sizes(text)
        assert (found["requested"], found["gpu"]) == (896 * MIB, 0)
        cause = text.index("torch.OutOfMemoryError")
        assert "(Worker_TP0 pid=" in text[:cause].splitlines()[-1]
        cascade = text[cause:]
        for line in ("EngineCore encountered a fatal error.", "Process EngineCore_DP0:", "EngineDeadError"):
            assert line in cascade
        assert [gpus.used_mib(index) for index in range(8)] == [0] * 8

    def test_what_the_model_takes(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        log = tmp_path / "log"
        with running(gpus, log, "extraction", "--speed", 2000, "--output-dir", tmp_path / "out") as process:
            wait_until(lambda: b"Extracting hidden states" in log.read_bytes())
            taken_gib = [gpus.used_mib(index) / 1024 for index in range(8)]
            assert taken_gib == pytest.approx([91] * 8, abs=0.8)
            process.terminate()
            process.wait()
            wait_until(lambda: not any(gpus.used_mib(index) for index in range(8)), what="empty GPUs")

    def test_killed_outright_its_workers_follow(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        log = tmp_path / "log"
        with running(gpus, log, "extraction", "--speed", 2000, "--output-dir", tmp_path / "out") as process:
            wait_until(lambda: gpus.used_mib(7) > 1000)
            process.kill()
            wait_until(lambda: not any(gpus.used_mib(index) for index in range(8)), what="empty GPUs")

    @pytest.mark.parametrize("batch_size", [4, 31])
    def test_sizes_that_fit_write_every_sample_once(self, gpus: SimulatedGpus, tmp_path: Path, batch_size: int) -> None:
        out = tmp_path / "out"
        code, text = workload(gpus, "extraction", "--batch-size", batch_size, "--output-dir", out, *self.FAST)
        assert code == 0, text[-2000:]
        written = [sample for file in out.iterdir() for sample in json.loads(file.read_text())]
        assert sorted(map(int, written)) == list(range(1000))
        assert f"| {-(-1000 // batch_size)}/{-(-1000 // batch_size)} [" in text

    def test_every_size_that_fails_asks_for_another_amount(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        requests = {}
        for batch_size in (1000, 62):
            code, text = workload(
                gpus, "extraction", "--batch-size", batch_size, "--output-dir", tmp_path / "out", *self.FAST
            )
            assert code == 1
            requests[batch_size] = sizes(text)["requested"] / MIB
        assert requests == {1000: 448, 62: 28}


class TestTraining:
    def train(self, gpus: SimulatedGpus, tokens: int, tmp_path: Path) -> tuple[int, str]:
        arguments = ["--max-seq-len", tokens, "--epochs", 5, "--num-workers", 4, "--speed", 400, "--max-steps", 20]
        arguments += ["--output-dir", tmp_path / "out"]
        return workload(gpus, "torchrun", "--nproc_per_node=4", "gpuctl.simulation.training", *arguments)

    @pytest.mark.parametrize("tokens", [32768, 24576])
    def test_what_does_not_fit(self, gpus: SimulatedGpus, tmp_path: Path, tokens: int) -> None:
        code, text = self.train(gpus, tokens, tmp_path)
        assert code == 1
        assert sizes(text)["gpu"] == 1
        assert "[rank1]: Traceback (most recent call last):" in text
        assert text.count("closing signal SIGTERM") == 3
        assert "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====" in text
        root = text[text.index("Root Cause (first observed failure):") :]
        assert re.search(r"rank      : 1 \(local_rank: 1\)\n  exitcode  : 1 \(pid: \d+\)", root)
        assert text.count("exitcode  : -15") == 3
        assert [gpus.used_mib(index) for index in range(4)] == [0] * 4

    def test_what_fits(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        code, text = self.train(gpus, 16384, tmp_path)
        assert code == 0, text[-2000:]
        assert "17,723 batches an epoch" in text
        assert "step 20/20 " in text and text.endswith("training finished\n")
        assert (tmp_path / "out/step_0000020.pt").exists()

    def test_as_measured_at_8192(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        code, text = self.train(gpus, 8192, tmp_path)
        assert code == 0
        assert "35,446 batches an epoch" in text
        peak = re.search(r"step 20/20 .* peak ([\d.]+) GiB", text)
        assert peak is not None and float(peak[1]) == pytest.approx(39.8, abs=0.2)

    def test_launcher_told_to_end_ends_its_ranks(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        log = tmp_path / "log"
        arguments = ["--nproc_per_node=2", "gpuctl.simulation.training", "--speed", 100, "--output-dir", tmp_path]
        with running(gpus, log, "torchrun", *arguments) as process:
            wait_until(lambda: b"step 10/" in log.read_bytes())
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 1
            assert b"Received 15 death signal, shutting down workers" in log.read_bytes()
            assert (gpus.used_mib(0), gpus.used_mib(1)) == (0, 0)


class TestDrafter:
    def test_thread_dies_and_the_process_lives(self, gpus: SimulatedGpus, tmp_path: Path) -> None:
        log = tmp_path / "log"
        with running(gpus, log, "drafter", "--anchors", 1024, "--block-size", 24, "--speed", 200) as process:
            wait_until(lambda: log.read_text().count("waiting for drafter") > 2)
            text = log.read_text()
            assert process.poll() is None
            found = sizes(text)
            assert found["gpu"] == 7
            assert found["requested"] == pytest.approx(2 * 12_205_424_640, rel=1e-3)
            assert "Exception in thread drafter-0:\nTraceback (most recent call last):\n" in text
            assert "step " not in text
            assert gpus.used_mib(0) > 60_000  # the targets hold theirs

    def test_what_fits(self, gpus: SimulatedGpus) -> None:
        code, text = workload(gpus, "drafter", "--anchors", 512, "--block-size", 16, "--speed", 500, "--steps", 30)
        assert code == 0, text[-2000:]
        assert "step 30/30 " in text


def test_preparation_and_vocabulary(gpus: SimulatedGpus, tmp_path: Path) -> None:
    for module, file in (("preparation", "dataset.json"), ("vocabulary", "vocab_mapping.json")):
        code, text = workload(gpus, module, "--output-dir", tmp_path, "--speed", 500)
        assert code == 0, text
        assert (tmp_path / file).exists()
        assert text.endswith(f"{tmp_path / file}\n")


def test_other_processes_are_named_in_the_message(gpus: SimulatedGpus, tmp_path: Path) -> None:
    with holding(gpus.folder, visible="1", options=["--mib", "90000"]) as other:
        arguments = ["--max-seq-len", 4096, "--speed", 400, "--output-dir", tmp_path, "--max-steps", 2]
        code, text = workload(gpus, "training", *arguments, visible="1")
        assert code == 1
        assert f"Process {other.pid} has 87.89 GiB memory in use." in text
        assert "GPU 0 has a total capacity" in text  # its own count: the only card that it sees


def test_no_visible_gpu_says_what_cuda_says(gpus: SimulatedGpus, tmp_path: Path) -> None:
    code, text = workload(gpus, "training", "--output-dir", tmp_path, visible="")
    assert code == 1 and "RuntimeError: No CUDA GPUs are available" in text


def test_hostile_job_resists_and_ends_with_its_time(gpus: SimulatedGpus, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(gpus, log, "hostile", "--mib", 100, "--seconds", 4) as process:
        wait_until(lambda: log.read_text().count("hostile:") == 6)
        bare = re.search(r"hostile: bare (\d+) holds", log.read_text())
        assert bare is not None
        assert b"GPUCTL" not in Path(f"/proc/{bare[1]}/environ").read_bytes()
        assert os.getsid(int(bare[1])) != os.getsid(process.pid)
        process.terminate()
        process.kill()
        process.wait()
        assert gpus.used_mib(0) == 200  # its children keep what the dead one held
        wait_until(lambda: gpus.used_mib(0) == 0, what="the end that it sets itself")
