"""What the judge of an attempt was given, second by second, kept so that it can be judged again.

The logs themselves stay where they are: a moment only says how far they had been read. Old moments are kept less
densely: readings as means (memory as its peak), what was read and what the machine said without loss.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

from gpuctl.wire.incidents import Evidence
from gpuctl.wire.samples import DeviceSample, Sample, TreeIo
from gpuctl.wire.word import Word

DENSITY: Sequence[Tuple[float, float]] = ((3600.0, 1.0), (36_000.0, 10.0), (360_000.0, 60.0))
"""(up to this age in seconds, one moment every so many seconds); beyond, one every ten minutes."""
SPARSEST_S = 600.0
AT_WORK = 0.25  # of the power limit, at least
LOOK_S = 20.0

Reading = List[Optional[float]]  # utilisation, power, memory used, power limit, temperature: as DeviceSample has them
_MEMORY = 2  # its place in a Reading


@dataclass(frozen=True)
class Moment(Word):
    mono_s: float
    over_s: float = 0.0  # before it, that it stands for too, where several became one
    read: Dict[str, int] = field(default_factory=dict)  # by log: bytes since the attempt began, where there were more
    cut: List[str] = field(default_factory=list)  # logs that were cut or replaced
    gpus: Dict[str, Reading] = field(default_factory=dict)  # by index
    error: Optional[str] = None  # why there is no reading
    io: Optional[TreeIo] = None
    facts: List[Evidence] = field(default_factory=list)

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"io": TreeIo, "facts": Evidence}

    def to_line(self) -> str:
        """One line of JSON, without what is empty."""
        return json.dumps({key: value for key, value in self.to_json().items() if value}, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Optional[Moment]:
        """None for a line that was not written whole."""
        try:
            data = json.loads(line)
            return cls.from_json(data) if isinstance(data, dict) else None
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def at_work(self) -> bool:
        for reading in self.gpus.values():
            utilisation, power_w, _, limit_w, _ = [*reading, None, None, None, None, None][:5]
            if power_w is not None and limit_w:
                if power_w >= AT_WORK * limit_w:
                    return True
            elif utilisation is not None and utilisation >= 50:  # power can't be read everywhere
                return True
        return False

    def samples(self, uuids: Mapping[str, str], total_mib: Optional[int]) -> Iterator[Sample]:
        """The telemetry of the time that it stands for; `uuids` by index. None where none was taken."""
        if not self.gpus and self.error is None:
            return
        devices = [_device(index, reading, uuids.get(index, index), total_mib) for index, reading in self.gpus.items()]
        for at in self.times():
            yield Sample("", at, devices, error=self.error)

    def times(self) -> Iterator[float]:
        """The times to look at, its own last: at most `LOOK_S` apart, as nobody had slept meanwhile."""
        for number in range(int(self.over_s // LOOK_S), 0, -1):
            yield self.mono_s - number * LOOK_S
        yield self.mono_s


def readings(sample: Sample) -> Dict[str, Reading]:
    """A sample as a moment has it."""
    return {
        str(device.index): [
            device.utilisation,
            None if device.power_w is None else round(device.power_w),
            device.memory_used_mib,
            None if device.power_limit_w is None else round(device.power_limit_w),
            device.temperature_c,
        ]
        for device in sample.devices
    }


def worked_s(moments: Iterable[Moment], since: float) -> float:
    """For how long after `since` one of the GPUs was seen at work: what waits or spins takes little more than idle
    power, and a copy of weights is no work."""
    return sum(moment.over_s or 1.0 for moment in moments if moment.mono_s > since and moment.at_work)


def memory_mib(reading: Reading) -> Optional[int]:
    """The memory in use, of a reading; None where it was not read."""
    return _whole(reading[_MEMORY]) if len(reading) > _MEMORY else None


def _device(index: str, reading: Reading, uuid: str, total_mib: Optional[int]) -> DeviceSample:
    utilisation, power_w, used_mib, limit_w, temperature = [*reading, None, None, None, None, None][:5]
    return DeviceSample(
        int(index), uuid, memory_used_mib=_whole(used_mib), memory_total_mib=total_mib, utilisation=_whole(utilisation),
        power_w=power_w, power_limit_w=limit_w, temperature_c=_whole(temperature),
    )  # fmt: skip


def thinned(moments: Iterable[Moment], now: float) -> List[Moment]:
    """The same story with fewer moments: as dense as their age deserves."""
    kept: List[List[Moment]] = []
    last: Optional[Tuple[float, int]] = None
    for moment in moments:
        every_s = _density(now - moment.mono_s)
        bucket = (every_s, int(moment.mono_s // every_s))
        if bucket == last and every_s > DENSITY[0][1]:
            kept[-1].append(moment)
        else:
            kept.append([moment])
        last = bucket
    return [_merged(bucket) for bucket in kept]


def _density(age_s: float) -> float:
    return next((every_s for up_to_s, every_s in DENSITY if age_s <= up_to_s), SPARSEST_S)


def _merged(moments: Sequence[Moment]) -> Moment:
    if len(moments) == 1:
        return moments[0]
    read: Dict[str, int] = {}
    for moment in moments:
        read.update({source: max(size, read.get(source, 0)) for source, size in moment.read.items()})
    indices = {index for moment in moments for index in moment.gpus}
    ios = [moment.io for moment in moments if moment.io is not None]
    return Moment(
        moments[-1].mono_s,
        round(moments[-1].mono_s - moments[0].mono_s + moments[0].over_s, 2),
        read,
        list(dict.fromkeys(source for moment in moments for source in moment.cut)),
        {index: _mean([moment.gpus[index] for moment in moments if index in moment.gpus]) for index in sorted(indices)},
        next((moment.error for moment in moments if moment.error), None),
        _summed(ios) if ios else None,
        list({(fact.cls, fact.text): fact for moment in moments for fact in moment.facts}.values()),
    )


def _mean(rows: Sequence[Reading]) -> Reading:
    """Means, but of memory the most; None where nothing was read."""
    merged: Reading = []
    for at in range(min(map(len, rows))):
        known = [value for value in (row[at] for row in rows) if value is not None]
        if not known:
            merged.append(None)
        else:
            merged.append(max(known) if at == _MEMORY else round(sum(known) / len(known)))
    return merged


def _summed(ios: Sequence[TreeIo]) -> TreeIo:
    cpu = [io.cpu_s for io in ios if io.cpu_s is not None]
    return TreeIo(
        ios[-1].mono_s, sum(io.over_s for io in ios), sum(io.read_bytes for io in ios),
        sum(io.written_bytes for io in ios), sum(cpu) if cpu else None,
    )  # fmt: skip


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else int(value)
