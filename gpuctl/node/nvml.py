"""Real GPUs, read through pynvml. Nobody else imports it, and only the sampler's process runs this.

Memory is NVML's v2 count: v1 counts what the driver keeps and never reads 0 (615 MiB on an empty H200). A getter that a
GPU or a driver does not support gives None, never 0. What can't change while the driver is loaded is read once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

import pynvml

from gpuctl.wire.samples import DeviceProcess, DeviceSample, Xid

T = TypeVar("T")

MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """One GPU, as far as it never changes. `error` where not even a handle could be had."""

    index: int
    uuid: str
    handle: Any
    name: Optional[str] = None
    pci: Optional[str] = None
    minor: Optional[int] = None
    mig: Optional[bool] = None
    error: Optional[str] = None


class Nvml:
    """The driver of this machine. Where it does not start, `error` says why and each reading tries again."""

    def __init__(self, library: Optional[str] = None) -> None:
        """`library`: a libnvidia-ml.so.1 at an unusual place."""
        self._library = library
        self._devices: Optional[List[Device]] = None
        self._events: Any = None
        self.driver: Optional[str] = None
        self.error: Optional[str] = None

    def devices(self) -> List[DeviceSample]:
        return [_sample(device) for device in self._started()]

    def memory(self, uuids: Sequence[str]) -> Dict[str, Optional[int]]:
        handles = {device.uuid: device.handle for device in self._started() if device.error is None}
        return {uuid: _used_mib(handles[uuid]) if uuid in handles else None for uuid in uuids}

    def xids(self) -> List[Xid]:
        """Xids since the last call. The driver keeps them in the event set, so nobody needs to wait for them."""
        found: List[Xid] = []
        while self._events is not None:
            event = _reading(lambda: pynvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # no more, or a driver that has none
                break
            found.append(Xid(int(event.eventData), self._index_of(event.device)))
        return found

    def _index_of(self, handle: Any) -> Optional[int]:
        uuid = _reading(lambda: pynvml.nvmlDeviceGetUUID(handle))
        return next((device.index for device in self._devices or [] if device.uuid == uuid), None)

    def _started(self) -> List[Device]:
        if self._devices is None:
            try:
                if self._library is not None:
                    # pynvml knows one name only; a library that is loaded already answers to it by its soname.
                    ctypes.CDLL(self._library, mode=ctypes.RTLD_GLOBAL)
                pynvml.nvmlInit()
                self.driver = _reading(pynvml.nvmlSystemGetDriverVersion)
                self._devices = _enumerate()
                self._events = _watched_for_xids(self._devices)
                self.error = None
            except (pynvml.NVMLError, OSError) as error:
                self.error = f"{error} ({self._library or 'libnvidia-ml.so.1'})"
                return []
        return self._devices


def _reading(read: Callable[[], T]) -> Optional[T]:
    """What `read` gives; None where this GPU, driver or account has no such reading."""
    try:
        return read()
    except pynvml.NVMLError:
        return None


def _enumerate() -> List[Device]:
    """All GPUs in PCI order, which is how nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID count them."""
    found = [_device(number) for number in range(pynvml.nvmlDeviceGetCount())]
    found.sort(key=lambda device: device.pci or "~")  # one that does not even name its bus comes last
    return [replace(device, index=index) for index, device in enumerate(found)]


def _device(number: int) -> Device:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        return Device(number, uuid=f"unreadable-{number}", handle=None, error=str(error))
    pci = _reading(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    mig = _reading(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return Device(
        index=number,
        uuid=uuid,
        handle=handle,
        name=_reading(lambda: pynvml.nvmlDeviceGetName(handle)),
        pci=pci.busId if pci is not None else None,
        minor=_reading(lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
        mig=bool(mig[0]) if mig is not None else None,
    )


def _watched_for_xids(devices: Sequence[Device]) -> Any:
    """An event set that collects every GPU's Xid events; None where the driver has none."""
    events = _reading(pynvml.nvmlEventSetCreate)
    if events is not None:
        for device in devices:
            if device.error is None:
                _register(device.handle, events)
    return events


def _register(handle: Any, events: Any) -> None:
    _reading(lambda: pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events))


def _sample(device: Device) -> DeviceSample:
    fixed = DeviceSample(
        device.index, device.uuid, device.name, device.pci, device.minor, mig=device.mig, error=device.error
    )
    if device.error is not None:
        return fixed
    handle = device.handle
    try:
        memory = _memory(handle)
    except pynvml.NVMLError_NotSupported:
        memory = None  # one that shares the machine's memory
    except pynvml.NVMLError as error:
        return replace(fixed, error=str(error))  # lost, to be reset, …: it answers nothing else either
    utilisation = _reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    power = _reading(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    limit = _reading(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return replace(
        fixed,
        memory_used_mib=_mib(memory.used) if memory is not None else None,
        memory_total_mib=_mib(memory.total) if memory is not None else None,
        utilisation=utilisation.gpu if utilisation is not None else None,
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        temperature_c=_reading(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        sm_clock_mhz=_reading(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        processes=_processes(handle),
    )


def _memory(handle: Any) -> Any:
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        # A driver older than R510: there v1 does not count the driver's own memory yet.
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _used_mib(handle: Any) -> Optional[int]:
    memory = _reading(lambda: _memory(handle))
    return _mib(memory.used) if memory is not None else None


def _processes(handle: Any) -> Optional[List[DeviceProcess]]:
    """Compute and graphics processes, each pid once; None where neither list can be read."""
    lists = [
        _reading(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        _reading(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
    ]
    readable = [processes for processes in lists if processes is not None]
    if not readable:
        return None
    used: Dict[int, Optional[int]] = {}
    for process in (process for processes in readable for process in processes):
        if used.get(process.pid) is None:
            used[process.pid] = _mib(process.usedGpuMemory)
    return [DeviceProcess(pid, mib) for pid, mib in sorted(used.items())]


def _mib(size_bytes: Optional[int]) -> Optional[int]:
    """Rounded up: a byte that is still held must not read as 0."""
    return None if size_bytes is None else -(-size_bytes // MIB)
