"""A run spec: one job, rendered for one node, as `launch` sends it and `spec.json` keeps it.

Durations are seconds, sizes carry their unit in the name. Secrets' values are never in it, only their names.
Templates (`command`, `setup` is literal, `workdir`, `env` values, …) keep their braces: the node fills them in for each
attempt, since parameters change from one to the next (`gpuctl.wire.braces`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Type, Union

from gpuctl.wire.word import Word

Scalar = Union[str, int, float, bool]
Number = Union[int, float]


@dataclass(frozen=True)
class Stop(Word):
    """How an attempt is asked to end: a signal's name without SIG, then the grace before SIGKILL."""

    signal: str = "TERM"
    grace_s: float = 30.0


@dataclass(frozen=True)
class OnOom(Word):
    """What gives way when GPU memory runs out. Mappings are by parameter's name; what has no entry has none."""

    reduce: List[str] = field(default_factory=list)  # in the order in which to give way
    known_good: Dict[str, Number] = field(default_factory=dict)
    factor: float = 0.5
    floor: Dict[str, Number] = field(default_factory=dict)  # 1 where there is none
    multiple_of: Dict[str, int] = field(default_factory=dict)
    values: Dict[str, List[Number]] = field(default_factory=dict)  # explicit ladders
    keep_product: List[str] = field(default_factory=list)
    at_load: List[str] = field(default_factory=list)
    max_relaunches: int = 6
    max_lost_s: Optional[float] = None
    resume_changed: bool = False


@dataclass(frozen=True)
class Relaunches(Word):
    """A budget of relaunches with a pause before each."""

    relaunch: int = 0
    backoff_s: float = 30.0


@dataclass(frozen=True)
class Resume(Word):
    """What to append to the command once a checkpoint that matches `when` exists; `{latest}` is its path."""

    when: str
    append: str


@dataclass(frozen=True)
class Outputs(Word):
    paths: List[str] = field(default_factory=list)
    on_relaunch: str = "keep"  # keep | archive


@dataclass(frozen=True)
class Finding(Word):
    """A detector's setting. `below` is a share of the power limit and is None where it does not apply."""

    for_s: float
    action: str = "alert"  # alert | relaunch | kill
    below: Optional[float] = None


@dataclass(frozen=True)
class Watch(Word):
    logs: List[str] = field(default_factory=list)  # globs, relative to workdir
    ready: Optional[str] = None
    ready_within_s: Optional[float] = None
    progress: Optional[str] = None
    done: Optional[str] = None
    stall: Optional[Finding] = None
    low_power: Optional[Finding] = None

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"stall": Finding, "low_power": Finding}


@dataclass(frozen=True)
class Callback(Word):
    """A shell line that the supervisor runs on the node when the run reaches one of these states."""

    when: List[str]
    run: str


@dataclass(frozen=True)
class RunSpec(Word):
    run: str  # the run's id: <job>-<suffix>
    job: str
    node: str  # the inventory's name of the node that it was launched on
    command: str  # shell text with braces
    params: Dict[str, Scalar] = field(default_factory=dict)
    written: Dict[str, str] = field(default_factory=dict)  # numbers among them as a person wrote them: 1e3, not 1000.0
    setup: str = ""
    workdir: str = "~"
    env: Dict[str, str] = field(default_factory=dict)
    secrets: List[str] = field(default_factory=list)
    gpus: Union[int, str, List[int]] = 1  # how many; "all"; or which indices. 0: none
    type: str = "task"  # task | service
    launcher: str = "nohup"  # nohup | tmux
    timeout_s: Optional[float] = None  # of each attempt
    stop: Stop = field(default_factory=Stop)
    share: bool = False
    queue: bool = False
    after: Optional[str] = None
    on_oom: Optional[OnOom] = None
    on_failure: Relaunches = field(default_factory=Relaunches)
    policy: Dict[str, Union[str, Relaunches]] = field(default_factory=dict)  # class -> "stop" | "alert" | budget
    on_busy_wait_s: float = 3600.0
    resume: Optional[Resume] = None
    resume_older: bool = False  # launch --resume
    outputs: Outputs = field(default_factory=Outputs)
    watch: Watch = field(default_factory=Watch)
    callback: Optional[Callback] = None
    observe: bool = False
    probe: bool = False  # `gpuctl fit`: it has shown what it was tried for, and is ended, once `watch.done` is seen
    by: str = ""  # who launched it, from where: user@host
    version: int = 1

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {
        "stop": Stop,
        "on_oom": OnOom,
        "on_failure": Relaunches,
        "resume": Resume,
        "outputs": Outputs,
        "watch": Watch,
        "callback": Callback,
    }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """As `Word.from_json`; `policy` maps to words or strings, so it is read here."""
        spec = super().from_json(data)
        budgets = {
            name: Relaunches.from_json(value) if isinstance(value, dict) else value
            for name, value in spec.policy.items()
        }
        object.__setattr__(spec, "policy", budgets)
        return spec
