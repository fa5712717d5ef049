"""The sampler: the only process that loads NVML, because a wedged driver can block whoever asks it for ever.

One JSON request a line on stdin, one answer a line on stdout. The first line of stdin is the node. It ends at EOF, so
it never outlives who asks. `gpuctl.node.telemetry` is the other end.

    {"id": 1, "want": "sample"}                    {"id": 1, "sample": {…}}
    {"id": 2, "want": "memory", "uuids": ["…"]}    {"id": 2, "memory": {"GPU-…": 1024}}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Optional, Protocol, Sequence

from gpuctl.node.clock import boottime, now
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import DeviceSample, Sample, Xid


class Readings(Protocol):
    """Where readings come from: the driver, or a simulation of it. `error` says why `devices` found none."""

    driver: Optional[str]
    error: Optional[str]

    def devices(self) -> List[DeviceSample]: ...

    def memory(self, uuids: Sequence[str]) -> Dict[str, Optional[int]]: ...

    def xids(self) -> List[Xid]: ...


def main() -> int:
    # Only answers go where answers are read: whatever a driver's library prints goes nowhere.
    with open(os.dup(1), "w", encoding="utf-8") as answers:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        readings = open_readings(NodeSpec.from_json(json.loads(sys.stdin.readline())))
        for line in sys.stdin:
            answers.write(json.dumps(answer(readings, json.loads(line))) + "\n")
            answers.flush()
    return 0


def open_readings(node: NodeSpec) -> Readings:
    """Imports only what this node needs: pynvml is most of what a sampler weighs."""
    if node.simulate is not None:
        from gpuctl.simulation.devices import resolved
        from gpuctl.simulation.nvml import SimulatedNvml

        made = resolved(node).simulate
        return SimulatedNvml(str(made and made.folder))
    from gpuctl.node.nvml import Nvml

    return Nvml(node.nvml_library)


def answer(readings: Readings, request: Dict[str, Any]) -> Dict[str, Any]:
    if request["want"] == "memory":
        return {"id": request["id"], "memory": readings.memory(request["uuids"])}
    devices = readings.devices()
    sample = Sample(now(), round(boottime(), 3), devices, readings.driver, readings.error, readings.xids())
    return {"id": request["id"], "sample": sample.to_json()}
