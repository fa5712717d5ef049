"""What telemetry reads: one sample is every device at one moment. An absent reading is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, List, Mapping, Optional, Type

from gpuctl.wire.word import Word


@dataclass(frozen=True)
class DeviceProcess(Word):
    """A process that NVML names on a device: a hint, never a proof (a dead parent's pid may stand there)."""

    pid: int
    used_mib: Optional[int] = None


@dataclass(frozen=True)
class DeviceSample(Word):
    """One GPU. Memory is NVML's v2 count (an empty GPU reads 0)."""

    index: int  # in PCI order, as nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID count
    uuid: str
    name: Optional[str] = None
    pci: Optional[str] = None
    minor: Optional[int] = None  # /dev/nvidia<minor>
    memory_used_mib: Optional[int] = None
    memory_total_mib: Optional[int] = None
    utilisation: Optional[int] = None  # percent
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    temperature_c: Optional[int] = None
    sm_clock_mhz: Optional[int] = None
    mig: Optional[bool] = None
    processes: Optional[List[DeviceProcess]] = None
    error: Optional[str] = None  # this device's own trouble, in words ("GPU is lost")

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"processes": DeviceProcess}


@dataclass(frozen=True)
class Xid(Word):
    """An error of a GPU, as the driver reports it: 31, 79, … (`gpuctl.watchdog.xids` says what they mean)."""

    number: int
    gpu: Optional[int] = None  # its index


@dataclass(frozen=True)
class Sample(Word):
    """`error` says why there are no devices (no driver, no library, the driver hangs)."""

    time: str  # UTC, RFC 3339
    mono_s: float  # CLOCK_BOOTTIME
    devices: List[DeviceSample] = field(default_factory=list)
    driver: Optional[str] = None
    error: Optional[str] = None
    xids: List[Xid] = field(default_factory=list)  # since the last sample

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"devices": DeviceSample, "xids": Xid}


@dataclass(frozen=True)
class TreeIo(Word):
    """What the attempt's processes have read, written and computed in the `over_s` seconds before `mono_s`; through
    pipes and from the page cache too."""

    mono_s: float
    over_s: float
    read_bytes: int
    written_bytes: int
    cpu_s: Optional[float] = None
