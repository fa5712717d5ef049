"""Simulated GPUs, read as NVML reads real ones: the same answers as `gpuctl.node.nvml`, from a state folder."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Sequence

from gpuctl.simulation.devices import Holding, SimulatedGpus
from gpuctl.wire.samples import DeviceProcess, DeviceSample, Xid

DRIVER = "simulated"

IDLE_POWER = 0.11  # of the limit: an empty GPU (79 W of 700 on an H200)
IDLE_CLOCK_MHZ, BUSY_CLOCK_MHZ = 345, 1980


class SimulatedNvml:
    """One reading after another of the GPUs in a folder."""

    def __init__(self, folder: str) -> None:
        self._gpus = SimulatedGpus(folder)
        self._told: List[Xid] = []
        self.driver: Optional[str] = DRIVER
        self.error: Optional[str] = None

    def devices(self) -> List[DeviceSample]:
        """Every GPU now; none, and `error` set, where the folder's faults say so."""
        faults = self._gpus.faults()
        time.sleep(float(faults.get("hang_s", 0.0)))
        self.error = faults.get("error")
        if self.error:
            return []
        return [self._device(index, faults.get("lost", [])) for index in range(self._gpus.shape.gpus)]

    def memory(self, uuids: Sequence[str]) -> Dict[str, Optional[int]]:
        """MiB used, by UUID; None where a GPU does not answer."""
        known = {self._gpus.uuid(index): index for index in range(self._gpus.shape.gpus)}
        faults = self._gpus.faults()
        time.sleep(float(faults.get("hang_s", 0.0)))
        silent = {self._gpus.uuid(index) for index in faults.get("lost", [])}
        readable = not faults.get("error")
        return {
            uuid: self._gpus.used_mib(known[uuid]) if readable and uuid in known and uuid not in silent else None
            for uuid in uuids
        }

    def xids(self) -> List[Xid]:
        """Xids since the last call."""
        listed = [Xid(number, index) for number, index in self._gpus.faults().get("xids", [])]
        if listed == self._told:
            return []
        self._told = listed
        return listed

    def _device(self, index: int, lost: Sequence[int]) -> DeviceSample:
        gpus, shape = self._gpus, self._gpus.shape
        name, pci = shape.model, f"00000000:{index + 1:02X}:00.0"
        if index in lost:
            return DeviceSample(index, gpus.uuid(index), name, pci, index, error="GPU is lost")
        holdings = gpus.holdings(index)
        power = _power(holdings)
        return DeviceSample(
            index=index,
            uuid=gpus.uuid(index),
            name=name,
            pci=pci,
            minor=index,
            memory_used_mib=gpus.used_mib(index),
            memory_total_mib=shape.memory_mib,
            utilisation=min(100, sum(holding.utilisation for holding in holdings)),
            power_w=round(power * shape.power_limit_w, 1),
            power_limit_w=float(shape.power_limit_w),
            temperature_c=round(28 + 45 * power),
            sm_clock_mhz=BUSY_CLOCK_MHZ if holdings else IDLE_CLOCK_MHZ,
            mig=False,
            processes=[DeviceProcess(holding.pid, holding.mib) for holding in holdings if holding.mib],
        )


def _power(holdings: Sequence[Holding]) -> float:
    """A share of the limit. Contexts that compute add up; those that only wait cost what one does."""
    if not holdings:
        return IDLE_POWER
    waiting = Holding(0, 0).power
    return min(1.0, waiting + sum(max(0.0, holding.power - waiting) for holding in holdings))
