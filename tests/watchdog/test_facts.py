"""What the machine says beside the log, and what it explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuctl.watchdog.facts import HUNG_S
from gpuctl.watchdog.judge import Judge
from gpuctl.watchdog.xids import class_of
from gpuctl.wire.incidents import Evidence, Exit, Incident
from gpuctl.wire.runspec import Watch
from gpuctl.wire.samples import DeviceSample, Sample, TreeIo

OOM_KILL = Evidence("host_oom", "memory.events of /job: oom_kill 0 → 1", source="counters", pid=812)
NONE_COUNTED = Evidence("unknown", "no OOM kill was counted", source="counters")
XID_79 = Evidence("xid_hw", "Xid 79 on GPU 3", source="nvml", gpu=3)
XID_31 = Evidence("cuda_illegal_access", "Xid 31 on GPU 0", source="nvml", gpu=0)
FULL = Evidence("disk_full", "the disk of /data is full", source="disk")

SIGKILLED = Exit(signal=9)
FAILED = Exit(exit_code=1)


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n{line}\n'


def ended(log: str, exit: Exit, *facts: Evidence) -> Incident:
    judge = Judge(Watch())
    judge.feed("log", log.encode(), 10.0)
    incident = judge.exited(exit, 20.0, facts)
    assert incident is not None and incident.fatal
    return incident


def test_a_sigkill_with_an_oom_kill_counted_is_host_oom() -> None:
    incident = ended("loading data\n", SIGKILLED, OOM_KILL)
    assert (incident.cls, incident.evidence[0]) == ("host_oom", OOM_KILL)
    assert "main memory ran out" in incident.advice


def test_a_sigkill_alone_is_no_host_oom() -> None:
    incident = ended("loading data\n", SIGKILLED, NONE_COUNTED)
    assert incident.cls == "unknown"
    assert "somebody or something else" in incident.advice and NONE_COUNTED in incident.evidence


def test_an_oom_kill_of_a_neighbour_explains_no_other_end() -> None:
    assert ended(raised("ValueError: no such column"), FAILED, OOM_KILL).cls == "code_error"


@pytest.mark.parametrize(
    "line",
    [
        raised("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed."),
        raised("RuntimeError: DataLoader worker (pid(s) 812) exited unexpectedly"),
        raised("concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly"),
        "  exitcode  : -9 (pid: 812)\n  traceback : Signal 9 (SIGKILL) received by PID 812",
        "bash: line 3:   812 Killed                  python train.py",
    ],
)
def test_a_killed_worker_with_an_oom_kill_counted_is_host_oom(line: str) -> None:
    incident = ended(f"step 1/100\n{line}\n", FAILED, OOM_KILL)
    assert (incident.cls, incident.evidence[0]) == ("host_oom", OOM_KILL)


def test_a_worker_killed_by_a_person_is_no_host_oom() -> None:
    log = "step 1/100\nRuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.\n"
    assert ended(log, FAILED, NONE_COUNTED).cls == "unknown"
    assert ended(log, FAILED).cls == "host_oom"  # where nothing counts, the log is all there is


def test_memory_that_the_program_itself_could_not_get_needs_no_kill() -> None:
    assert ended("MemoryError: Unable to allocate 90.0 GiB for an array\n", FAILED, NONE_COUNTED).cls == "host_oom"


def test_a_gpu_oom_stays_one_though_the_launcher_kills_the_rest() -> None:
    log = (
        "step 1/100\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 94.97 GiB of which 1.00 GiB is free.\nSignal 9 (SIGKILL) received by PID 900\n"
    )
    assert ended(log, FAILED, OOM_KILL).cls == "gpu_oom"


def test_a_fault_of_the_program_stays_one_though_the_launcher_kills_the_rest() -> None:
    log = (
        'step 1/100\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
        "KeyError: 'x'\nSignal 9 (SIGKILL) received by PID 900\n"
    )
    assert ended(log, FAILED, OOM_KILL).cls == "code_error"


def test_the_process_that_the_log_names_stands_first() -> None:
    other = Evidence("host_oom", "Killed process 77 (postgres)", source="kernel log", pid=77)
    incident = ended("DataLoader worker (pid 812) is killed by signal: Killed.\n", FAILED, other, OOM_KILL)
    assert incident.evidence[0].pid == 812


def test_a_hardware_fault_is_the_root_of_a_lost_peer() -> None:
    log = (
        "[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
    )
    incident = ended(log, FAILED, XID_79)
    assert (incident.cls, incident.gpu) == ("xid_hw", 3)


def test_a_mistake_of_the_program_stays_one_beside_a_hardware_fault() -> None:
    assert ended(raised("KeyError: 'x'"), FAILED, XID_79, FULL).cls == "code_error"
    assert ended(raised("RuntimeError: something went wrong"), FAILED, XID_79).cls == "xid_hw"


def test_a_programs_own_xid_explains_a_silent_end_and_no_more() -> None:
    assert ended("step 1/9\n", FAILED, XID_31).cls == "cuda_illegal_access"
    log = "RuntimeError: CUDA error: device-side assert triggered\n"
    assert ended(log, FAILED, XID_31).cls == "device_assert"


def test_a_job_that_went_on_for_long_did_not_fail_of_an_early_xid() -> None:
    judge = Judge(Watch())
    judge.fact(XID_79)
    for step in range(1, 20):
        judge.feed("log", f"step {step}/100\n".encode(), float(step))
    judge.feed("log", raised("KeyError: 3").encode(), 30.0)
    incident = judge.exited(FAILED, 31.0)
    assert incident is not None and incident.cls == "code_error"


def test_a_hardware_fault_is_told_once_while_the_job_lives() -> None:
    judge = Judge(Watch())
    judge.feed("log", b"step 1/9\n", 1.0)
    judge.fact(XID_79)
    judge.fact(XID_79)
    assert [(found.cls, found.fatal) for found in judge.tick(2.0)] == [("xid_hw", False)]
    assert judge.tick(3.0) == []


def test_an_oom_kill_beside_a_job_that_goes_on_is_told() -> None:
    judge = Judge(Watch())
    judge.feed("log", b"step 1/9\n", 1.0)
    judge.fact(OOM_KILL)
    assert [(found.cls, found.fatal) for found in judge.tick(2.0)] == [("host_oom", False)]
    assert judge.exited(Exit(exit_code=0), 3.0) is None


def test_a_full_disk_explains_a_failed_write() -> None:
    assert ended("RuntimeError: PytorchStreamWriter failed\n", FAILED, FULL).cls == "disk_full"
    assert ended("CUDA out of memory. Tried to allocate 2.00 GiB\n", FAILED, FULL).cls.startswith("gpu_oom")


def test_noise_is_no_evidence() -> None:
    assert [class_of(number) for number in (45, 31, 13, 79, 999)] == [
        None, "cuda_illegal_access", "cuda_illegal_access", "xid_hw", "xid_hw",
    ]  # fmt: skip


def _with_xid(number: int, log: str, *, age_s: int) -> Judge:
    judge = Judge(Watch(), started=0.0)
    judge.feed("log", log.encode(), 10.0)
    judge.tick(10.0)
    judge.fact(Evidence(str(class_of(number)), f"Xid {number} on GPU 0", source="NVML", gpu=0, xid=number))
    for at in range(11, 11 + age_s):
        judge.tick(float(at))
    return judge


def _end_with_xid(number: int, log: str, *, age_s: int = 1) -> str:
    incident = _with_xid(number, log, age_s=age_s).exited(FAILED, 10.0 + age_s)
    assert incident is not None
    return incident.cls


PLAIN_END = raised("RuntimeError: it does not go on")
TIMED_OUT = "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE)\n"


@pytest.mark.parametrize("number", [8, 32, 63, 92, 45, 999])
def test_an_xid_that_does_not_say_whose_fault_it_was_explains_no_end(number: int) -> None:
    assert _end_with_xid(number, "step 1/9\n") == "unknown"
    assert _end_with_xid(number, PLAIN_END) == "code_error"


@pytest.mark.parametrize("number", [48, 64, 74, 79, 94, 95, 119, 154])
def test_an_xid_of_the_hardware_explains_an_end_that_follows_it(number: int) -> None:
    assert _end_with_xid(number, PLAIN_END) == "xid_hw"
    assert _end_with_xid(number, PLAIN_END, age_s=1000) == "code_error", "the job has lived on without a move to count"
    assert _end_with_xid(number, TIMED_OUT, age_s=1000) == "xid_hw", "who waits for a lost peer waits long"


@pytest.mark.parametrize("number", [13, 31, 43, 69])
def test_an_xid_of_the_program_is_no_fault_of_the_hardware(number: int) -> None:
    assert _end_with_xid(number, "step 1/9\n") == "cuda_illegal_access"


@pytest.mark.parametrize("error", ["FileNotFoundError", "PermissionError", "IsADirectoryError", "KeyError"])
def test_a_programs_own_mistake_explains_the_end_by_itself(error: str) -> None:
    assert _end_with_xid(79, raised(f"{error}: 'train.bin'")) == "code_error"


def test_each_xid_that_is_only_told_is_told_once_and_hides_no_fault() -> None:
    judge = Judge(Watch(), started=0.0)
    told = []
    for at, number in enumerate((63, 63, 92, 79, 74), 1):
        judge.fact(Evidence("xid_hw", f"Xid {number} on GPU 0", source="NVML", gpu=0, xid=number))
        told += [(found.evidence[0].xid, found.fatal) for found in judge.tick(float(at))]
    assert told == [(63, False), (92, False), (79, False)]


def silent(at: float) -> Sample:
    return Sample("", at, error="driver_hung: the driver has not answered for 5 s")


def test_a_hung_driver_is_told_at_once_and_fatal_when_the_job_is_silent_too() -> None:
    judge = Judge(Watch())
    judge.feed("log", b"step 1/9\n", 1.0)
    for at in (10.0, 20.0):
        judge.sample(silent(at))
    assert [(found.cls, found.fatal) for found in judge.tick(20.0)] == [("driver_hung", False)]
    assert [(at, found.cls, found.fatal) for at in range(21, 400) for found in judge.tick(float(at))] == [
        (10 + HUNG_S, "driver_hung", True),
        (10 + 2 * HUNG_S, "driver_hung", True),
    ]


@pytest.mark.parametrize(
    "sign",
    [
        TreeIo(0.0, 5.0, 500_000_000, 0, 0.0),
        TreeIo(0.0, 5.0, 0, 500_000_000, 0.0),
        TreeIo(0.0, 5.0, 0, 0, 5.0),
    ],
    ids=["reads", "writes", "computes"],
)
def test_a_hung_driver_ends_no_job_that_works_in_silence(sign: TreeIo) -> None:
    judge = Judge(Watch())
    judge.feed("log", b"step 1/9\n", 1.0)
    judge.sample(silent(10.0))
    judge.tick(10.0)
    for at in range(11, 900):
        assert judge.suspects, "its processes' I/O is to be looked at"
        if at % 5 == 0:
            judge.io(replace(sign, mono_s=float(at)))
        assert judge.tick(float(at)) == []


def test_time_that_nobody_saw_is_no_silence() -> None:
    judge = Judge(Watch())
    judge.sample(silent(10.0))
    judge.tick(10.0)
    assert next(at for at in range(7200, 7600) for found in judge.tick(float(at)) if found.fatal) > 7200 + HUNG_S - 60


def test_a_hung_driver_ends_no_job_that_goes_on_printing() -> None:
    judge = Judge(Watch())
    judge.sample(silent(10.0))
    judge.tick(10.0)
    for at in range(11, 300, 10):
        judge.feed("log", f"step {at}/999\n".encode(), float(at))
        assert judge.tick(float(at)) == []


def test_a_gpu_that_is_lost_is_a_hardware_fault() -> None:
    judge = Judge(Watch())
    lost = DeviceSample(3, "GPU-3", error="GPU is lost")
    for at in (1.0, 2.0):
        judge.sample(Sample("", at, devices=[DeviceSample(2, "GPU-2", error="Unknown Error"), lost]))
    assert [(found.cls, found.fatal, found.gpu) for found in judge.tick(2.0)] == [("xid_hw", False, 3)]
    incident = judge.exited(FAILED, 3.0)
    assert incident is not None and (incident.cls, incident.gpu) == ("xid_hw", 3)


def test_a_driver_that_answers_again_explains_nothing() -> None:
    judge = Judge(Watch())
    judge.sample(silent(10.0))
    judge.sample(Sample("", 11.0))
    incident = judge.exited(FAILED, 12.0)
    assert incident is not None and incident.cls == "unknown"


def test_a_driver_that_hangs_explains_a_failed_exit() -> None:
    judge = Judge(Watch())
    judge.sample(silent(10.0))
    incident = judge.exited(FAILED, 12.0)
    assert incident is not None and incident.cls == "driver_hung"
