"""What the agent's verbs answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Type

from gpuctl.wire.runspec import Scalar
from gpuctl.wire.samples import DeviceSample
from gpuctl.wire.word import Word


@dataclass(frozen=True)
class RunRow(Word):
    """One run as `ps` shows it. Times are UTC, RFC 3339."""

    run: str
    job: str
    node: str
    state: str
    attempt: Optional[int] = None
    params: Dict[str, Scalar] = field(default_factory=dict)
    gpus: List[int] = field(default_factory=list)
    created: Optional[str] = None
    ended: Optional[str] = None
    progress: Optional[Dict[str, Any]] = None  # {"done", "total"}
    incident: Optional[Dict[str, Any]] = None  # the last one: {"class", "gpu", "evidence", …}
    why: Optional[str] = None  # of its ending or waiting
    by: Optional[str] = None
    launcher: str = "nohup"
    secrets: List[str] = field(default_factory=list)  # their names: who relaunches it may have to hand them over
    machine: Optional[str] = None  # host name, where the run belongs to another machine (a shared home)
    queue_place: Optional[int] = None


@dataclass(frozen=True)
class Holder(Word):
    """A process with a device file open. `ours` is the run that it provably belongs to, None where there is none."""

    pid: int
    name: str
    user: str
    command: str
    start: int  # /proc/PID/stat's start time, in clock ticks: pid and start are the process
    devices: List[str] = field(default_factory=list)  # the files that it has open
    gpus: List[int] = field(default_factory=list)  # the GPUs that NVML names it on
    used_mib: Optional[int] = None  # together on those
    ours: Optional[str] = None
    protected: bool = False
    state: str = "?"  # the letter in /proc/PID/stat


@dataclass(frozen=True)
class DeviceRow(Word):
    """One GPU as `gpus` shows it."""

    device: DeviceSample
    leases: List[str] = field(default_factory=list)  # run ids
    lease_users: List[str] = field(default_factory=list)
    holders: List[Holder] = field(default_factory=list)

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"device": DeviceSample, "holders": Holder}


@dataclass(frozen=True)
class CleanReport(Word):
    """What `clean` found and did. `empty` is None where nothing could be read."""

    dry_run: bool
    killed: List[Holder] = field(default_factory=list)  # would be, in a dry run
    spared: List[Dict[str, Any]] = field(default_factory=list)  # a holder's JSON and "why"
    empty: Optional[bool] = None
    after_s: Optional[float] = None
    failure: Optional[str] = None  # foreign_holder | unkillable | held_outside
    why: Optional[str] = None
    memory_mib: Dict[str, Optional[int]] = field(default_factory=dict)  # by index, at the end

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"killed": Holder}
