"""From an incident to an action: a table by class, the job's own word above it, budgets around both.

`decide` is pure: it is given the history and answers what to do; how long to wait for foreign memory, and that nothing
starts before the GPUs are empty, is the supervisor's business.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from gpuctl.watchdog import budgets
from gpuctl.watchdog.experience import counts, seen_by
from gpuctl.watchdog.gpu_memory import held_by_others, wants_a_share
from gpuctl.watchdog.ladder import Exhausted, Step, next_step
from gpuctl.watchdog.stated import as_stated
from gpuctl.watchdog.vitals import LOW_POWER, STALL
from gpuctl.wire.incidents import Action, AttemptRecord, Incident
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.runspec import Finding, OnOom, Relaunches, RunSpec, Scalar, Watch

GIVES_WAY = ("gpu_oom", "gpu_oom_fragmentation")
AT_LOAD = ("gpu_oom_at_load", "kv_cache_too_small")
CURABLE = (
    "nccl_timeout",
    "nccl_error",
    "port_in_use",
    "auth_or_download",
    "rank_failed_secondary",
    "thread_died",
    "unknown",
)
"""What a second try may cure: `on_failure` is about these."""
STALLED_RELAUNCHES = 3
"""How often `action: relaunch` of a finding relaunches, where `on_failure` says nothing."""
HARMFUL: Mapping[str, Tuple[str, str]] = {
    "xid_hw": ("blocked", "the GPU reports a hardware fault: once it is reset or replaced, `gpuctl relaunch` goes on"),
    "driver_hung": ("blocked", "the driver does not answer: once the node is well again, `gpuctl relaunch` goes on"),
    "disk_full": ("failed", "a disk is full: once there is room, `gpuctl relaunch` goes on"),
}
"""Where a relaunch would do harm, or fail at once: the state that the run ends in, and what a person must do first."""

_CAUSE_CHARACTERS = 160
_GRANULE = (
    20 << 20
)  # PyTorch's allocator asks for blocks of this size whatever the tensor: equal requests prove nothing
_SETTING = re.compile(r"try setting (PYTORCH_\w*ALLOC_CONF)=(expandable_segments:True)")
_OLD_SETTING = "try setting max_split_size_mb"


def decide(
    incident: Incident,
    spec: RunSpec,
    params: Mapping[str, Scalar],
    history: Sequence[AttemptRecord],
    *,
    resumes: bool = False,
    ledger: Sequence[LedgerEntry] = (),
) -> Action:
    """What to do about it. `params` are the failed attempt's; `history` is every attempt, that one last.

    `resumes`: the next attempt would go on from a checkpoint. `ledger`: what other runs of the same template showed.
    """
    since = budgets.since_request(history)
    own = spec.policy.get(incident.cls)
    if own == "alert" or (own is None and not incident.fatal):
        return Action("alert", incident.advice or incident.cls, state="failed")
    if own == "stop":
        return _stop("failed", incident, "the job's `policy` says so")
    env = allocator_settings(spec, since)
    if isinstance(own, Relaunches):
        return _again(incident, spec, own, params, since, env=env, said=f"`policy` allows {_relaunches(own)}")
    if since and budgets.spoils_checkpoint(since[-1], history):
        back = _from_the_one_before(incident, params, since, env=env, resumes=resumes)
        if back is not None:
            return back
    if incident.cls in GIVES_WAY + AT_LOAD:
        return _give_way(incident, spec, params, since, ledger, env=env, resumes=resumes)
    if incident.cls in HARMFUL:
        state, why = HARMFUL[incident.cls]
        return _stop(state, incident, why)
    finding = {"stalled": spec.watch.stall, "low_power": spec.watch.low_power}.get(incident.cls)
    if finding is not None:
        return _as_watched(incident, finding, spec, params, since, env=env)
    if incident.cls in CURABLE:
        return _again(
            incident,
            spec,
            spec.on_failure,
            params,
            since,
            env=env,
            said=f"`on_failure` allows {_relaunches(spec.on_failure)}"
            if spec.on_failure.relaunch
            else "nothing says that a second try may help (`on_failure: {relaunch: 1}`)",
        )
    return _stop("failed", incident, "a second try would fail in the same way")


def watch_of(spec: RunSpec) -> Watch:
    """What to look at, with what `policy` says of its findings above what they say themselves."""
    watch, policy = spec.watch, spec.policy
    if "stalled" in policy:
        watch = replace(watch, stall=replace(watch.stall or STALL, action=_finding_action(policy["stalled"])))
    if "low_power" in policy:
        low_power = replace(watch.low_power or LOW_POWER, action=_finding_action(policy["low_power"]))
        watch = replace(watch, low_power=low_power)
    return watch


def _finding_action(own: Union[str, Relaunches]) -> str:
    return "relaunch" if isinstance(own, Relaunches) else "kill" if own == "stop" else "alert"


def allocator_settings(spec: RunSpec, history: Sequence[AttemptRecord]) -> Dict[str, str]:
    """What earlier messages asked to set against fragmentation: from then on it stays set for this run."""
    found: Dict[str, str] = {}
    for record in history:
        incident = record.incident
        if incident is None or incident.cls != "gpu_oom_fragmentation":
            continue
        text = " ".join(evidence.text for evidence in incident.evidence)
        setting = _SETTING.search(text)
        if setting:
            found[setting.group(1)] = setting.group(2)
        elif _OLD_SETTING in text:
            found["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"
    return {name: value for name, value in found.items() if name not in spec.env}


def _as_watched(
    incident: Incident,
    finding: Finding,
    spec: RunSpec,
    params: Mapping[str, Scalar],
    since: Sequence[AttemptRecord],
    *,
    env: Dict[str, str],
) -> Action:
    """A living attempt that was ended for what its detector found."""
    if finding.action != "relaunch":
        return _stop("failed", incident, "ended, as `watch` says")
    budget = spec.on_failure if spec.on_failure.relaunch else replace(spec.on_failure, relaunch=STALLED_RELAUNCHES)
    return _again(incident, spec, budget, params, since, env=env, said=f"it was relaunched {_times(budget.relaunch)}")


def _give_way(
    incident: Incident,
    spec: RunSpec,
    params: Mapping[str, Scalar],
    since: Sequence[AttemptRecord],
    ledger: Sequence[LedgerEntry],
    *,
    env: Dict[str, str],
    resumes: bool,
) -> Action:
    """GPU memory ran out: whose fault was it, and what is there to give way on?"""
    on_oom = spec.on_oom or OnOom()
    relaunched = sum(
        1
        for record in budgets.counted(spec, since)
        if record.incident is not None and record.incident.cls in GIVES_WAY + AT_LOAD
    )
    if spec.on_oom is None:
        return _stop("failed", incident, "the job has no `on_oom`, so nothing may be reduced")
    if relaunched > on_oom.max_relaunches:
        return _stop(
            "blocked",
            incident,
            f"it ran out of memory {_times(relaunched)} (`max_relaunches: {on_oom.max_relaunches}`)",
        )
    unchanged = _unchanged(incident, spec, params, since, env)
    if unchanged is not None:
        return unchanged
    lost = _too_much_lost(on_oom, since, resumes=resumes)
    if lost:
        return _stop("blocked", incident, lost)
    if _same_request(since):
        return _stop(
            "blocked",
            incident,
            "two sizes failed with the same request at the same place: the parameter is not the cause",
        )
    reduce = on_oom.at_load if incident.cls in AT_LOAD else on_oom.reduce
    incurable = _incurable(incident, reduce)
    if incurable:
        return _stop("blocked", incident, incurable)
    step = _next_step(incident, on_oom, params, since, ledger=ledger, reduce=reduce)
    if isinstance(step, Exhausted):
        return _stop("blocked", incident, step.why)
    if resumes and not on_oom.resume_changed and not _keeps_product(on_oom, params, step.params):
        return _stop(
            "blocked", incident,
            "it would resume from a checkpoint with changed values, which breaks schedules and step counts silently "
            f"({_changes(params, step.params)}; `on_oom: {{resume_changed: true}}` if that is fine; `gpuctl relaunch "
            f"{spec.run} --set …` does so this once)",
        )  # fmt: skip
    return Action("relaunch", f"{_what(incident)}: {step.why}", params=step.params, env=env)


def _incurable(incident: Incident, reduce: Sequence[str]) -> Optional[str]:
    """Why no value that may be reduced plays a part in it; None where one may."""
    if any(wants_a_share(evidence.text) for evidence in incident.evidence):
        return (
            "the engine asks for a share of the GPU that is not free, whatever is loaded: a lower "
            "gpu_memory_utilization, or a GPU that nobody else uses, would lift it"
        )
    if incident.cls in AT_LOAD and not reduce:
        return "it ran out while loading, which no smaller batch changes (`on_oom.at_load` names what would)"
    return None


def _unchanged(
    incident: Incident, spec: RunSpec, params: Mapping[str, Scalar], since: Sequence[AttemptRecord], env: Dict[str, str]
) -> Optional[Action]:
    """A relaunch with the same values, where they are not to blame: others held the memory, or fragments did."""
    foreign = held_otherwise(incident, since)
    if foreign:
        # GPUs that are shared need not become empty: who shares them must be given time to make room.
        pause_s = budgets.pause_s(spec, spec.on_failure, incident.cls, since) if spec.share else 0.0
        when = "there is room beside them" if spec.share else "the GPUs are empty"
        why = f"{foreign}: relaunched unchanged once {when}"
        return Action("relaunch", why, params=dict(params), env=env, delay_s=pause_s)
    if _new_setting(incident, spec, since):
        names = ", ".join(f"{name}={value}" for name, value in env.items())
        return Action(
            "relaunch", f"much was reserved but unused: unchanged, with {names}", params=dict(params), env=env
        )
    return None


def _next_step(
    incident: Incident,
    on_oom: OnOom,
    params: Mapping[str, Scalar],
    since: Sequence[AttemptRecord],
    *,
    ledger: Sequence[LedgerEntry],
    reduce: Sequence[str],
) -> Union[Step, Exhausted]:
    """By what the message states, else by the ladder. What other runs showed is advice: where it leaves nothing to try,
    it is tried without them."""
    seen = seen_by(incident, on_oom, since, ledger)
    stated = as_stated(incident, on_oom, params, seen, reduce) if incident.cls in AT_LOAD else None
    if stated is not None:
        return stated
    step = next_step(on_oom, params, seen, reduce=reduce)
    if isinstance(step, Exhausted) and ledger:
        return next_step(on_oom, params, seen_by(incident, on_oom, since), reduce=reduce)
    return step


def _keeps_product(on_oom: OnOom, before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> bool:
    """Whether only factors of a product that stays change: then a step is as large as before, and schedules hold."""
    return bool(on_oom.keep_product) and all(
        name in on_oom.keep_product for name in after if after[name] != before.get(name)
    )


def _changes(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} {before.get(name)} → {after[name]}" for name in after if after[name] != before.get(name))


def _from_the_one_before(
    incident: Incident,
    params: Mapping[str, Scalar],
    since: Sequence[AttemptRecord],
    *,
    env: Dict[str, str],
    resumes: bool,
) -> Optional[Action]:
    """The checkpoint that it went on from may be damaged: an earlier one is tried. None: the table decides."""
    given_up = budgets.steps_back(since)
    name = since[-1].resumed_from
    if resumes and given_up <= budgets.MOST_STEPS_BACK:
        why = f"{_what(incident)}, soon after it resumed from {name}: once more from the checkpoint before that"
        return Action("relaunch", why, params=dict(params), env=env)
    if incident.cls == "checkpoint_corrupt":
        left = "none is left before it" if not resumes else f"{given_up} in a row could not be used"
        return _stop("failed", incident, f"{name} can't be resumed from, and {left}; `gpuctl relaunch` begins anew")
    return None


def _again(
    incident: Incident,
    spec: RunSpec,
    budget: Relaunches,
    params: Mapping[str, Scalar],
    since: Sequence[AttemptRecord],
    *,
    env: Dict[str, str],
    said: str,
) -> Action:
    """The same once more, within a budget that counts this class only."""
    past = budgets.counted(spec, since)
    tries = sum(1 for record in past if record.incident is not None and record.incident.cls == incident.cls)
    if tries > budget.relaunch:
        return _stop("failed", incident, said)
    vain = budgets.in_a_row(since)
    if vain > max(budget.relaunch, budgets.MOST_IN_VAIN):
        return _stop("failed", incident, f"{vain} attempts in a row got nowhere, as far as could be seen")
    delay = budgets.pause_s(spec, budget, incident.cls, past)
    why = f"{_what(incident)}: try {tries + 1} of {budget.relaunch + 1}"
    return Action("relaunch", why, params=dict(params), env=env, delay_s=delay)


def held_otherwise(incident: Incident, since: Sequence[AttemptRecord]) -> Optional[str]:
    """Was it other processes' memory? Only where the message says so, or who was seen on the GPUs."""
    if incident.evidence and held_by_others(incident.evidence[0]):
        pids = ", ".join(str(other["pid"]) for other in incident.evidence[0].others if not other.get("ours"))
        return f"other processes ({pids}) held the GPU's memory"
    if incident.strangers:
        return f"other processes ({', '.join(map(str, incident.strangers))}) were on its GPUs"
    if since and not since[-1].gpus_were_empty:
        return "the GPUs were not empty when it began"
    return None


def _new_setting(incident: Incident, spec: RunSpec, since: Sequence[AttemptRecord]) -> bool:
    """Fragmentation, and a setting against it that no attempt before this one had."""
    if incident.cls != "gpu_oom_fragmentation":
        return False
    return allocator_settings(spec, since) != allocator_settings(spec, since[:-1])


def _too_much_lost(on_oom: OnOom, since: Sequence[AttemptRecord], *, resumes: bool) -> Optional[str]:
    """Late, with nothing to resume from: a leak or one long sample, which the next attempt would meet as late."""
    if on_oom.max_lost_s is None or resumes or not since:
        return None
    last = since[-1]
    if last.duration_s is None or not last.progressed or last.duration_s <= on_oom.max_lost_s:
        return None
    return (
        f"it had run for {last.duration_s / 60:.0f} minutes, more than `max_lost`, and has nothing to resume from: "
        "a leak or one long sample would end the next attempt as late"
    )


def _same_request(since: Sequence[AttemptRecord]) -> bool:
    """Did two sizes fail in asking for the same, at the same place? Then it is not the size that asks."""
    asked = [
        (record.params, record.incident.evidence[0])
        for record in since
        if record.incident is not None and record.incident.evidence and counts(record)
    ]
    if len(asked) < 2:
        return False
    (before, one), (now, other) = asked[-2:]
    if one.requested_bytes is None or one.requested_bytes <= _GRANULE or before == now:
        return False
    return one.requested_bytes == other.requested_bytes and one.frame == other.frame


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _relaunches(budget: Relaunches) -> str:
    return {0: "no relaunch", 1: "one relaunch"}.get(budget.relaunch, f"{budget.relaunch} relaunches")


def _what(incident: Incident) -> str:
    where = f" on GPU {incident.gpu}" if incident.gpu is not None else ""
    return f"{incident.cls}{where}"


def _stop(state: str, incident: Incident, why: str) -> Action:
    """What happened first, then what was decided."""
    cause = _cause(incident)
    return Action("stop", f"{_what(incident)}: {cause}; {why}" if cause else f"{_what(incident)}: {why}", state=state)


def _cause(incident: Incident) -> str:
    """The line that decided, or how the attempt ended. Where GPU memory ran out, the class says it all."""
    if incident.cls in GIVES_WAY + AT_LOAD:
        return ""
    if not incident.evidence:
        return incident.advice.rstrip(".")
    text = " ".join(incident.evidence[0].text.split())
    return text if len(text) <= _CAUSE_CHARACTERS else f"{text[: _CAUSE_CHARACTERS - 1]}…"


__all__: List[str] = ["AT_LOAD", "CURABLE", "GIVES_WAY", "HARMFUL", "allocator_settings", "decide", "held_otherwise"]
