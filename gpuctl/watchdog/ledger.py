"""What the ledger's entries say about values: have these, or smaller ones, failed before? What is known to fit?

Entries count for one template, GPU model and number of GPUs only; the caller selects them (`same`). The later of two
that contradict each other is believed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Iterable, List, Mapping, Optional, Sequence

from gpuctl.wire import braces
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.runspec import OnOom, RunSpec, Scalar

Params = Mapping[str, Scalar]


@dataclass(frozen=True)
class Outlook:
    """What is to be said before a launch. `refusal`: it would fail, for all that is known; None where it may pass."""

    warnings: List[str] = field(default_factory=list)
    refusal: Optional[str] = None
    hint: str = ""


def template_of(spec: RunSpec) -> str:
    """The fingerprint of a job's template: its command and set-up as they were written, braces and all."""
    text = json.dumps([spec.job, spec.setup, spec.command])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def env_of(spec: RunSpec, params: Params) -> str:
    """The fingerprint of the job's environment with these values, but for what is another one for each attempt."""
    known = {**dict.fromkeys(braces.BUILT_IN, ""), **spec.params, **params}
    env = {name: braces.render(value, known, quote=False) for name, value in spec.env.items()}
    text = json.dumps(env, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def same(entries: Iterable[LedgerEntry], template: str, model: str, count: int) -> List[LedgerEntry]:
    """The entries that count for this template on so many GPUs of this model, in the order given."""
    return [
        entry for entry in entries if (entry.template, entry.model, entry.count) == (template, model, count)
    ]  # fmt: skip


def outlook(spec: RunSpec, entries: Sequence[LedgerEntry], code: Optional[Mapping[str, Any]]) -> Outlook:
    """What `entries` (of the same template, model and count, oldest first) say of a launch with the spec's values.

    It is refused where the very same command, but for sizes that were no larger, has failed with the very same code in
    the same environment; it is warned of where only the template is the same.
    """
    failed = [entry for entry in standing(entries, spec.on_oom) if at_or_beyond(spec.params, entry.params, spec.on_oom)]
    if not failed:
        return Outlook()
    surely = [entry for entry in failed if _same_code(entry.code, code) and _same_command(spec, entry)]
    told = surely[-1] if surely else failed[-1]
    good = best_fitted(spec, entries)
    names = [name for name in _sizes(spec) if name in told.params] or list(told.params)
    text = f"{_values(told.params, names)} ran out of GPU memory on {told.count} × {told.model}"
    text += f" ({told.run}, attempt {told.attempt}: {told.cls})"
    fits = f"{_values(good.params, names)} fitted{_memory(good)}" if good is not None else ""
    if surely:
        hint = "`--force` launches it all the same" + (f"; {fits}" if fits else "; `gpuctl fit` finds what fits")
        return Outlook(refusal=f"with the same code, {text}", hint=hint)
    return Outlook(warnings=[text + (f"; {fits}" if fits else "")])


def best_fitted(spec: RunSpec, entries: Sequence[LedgerEntry]) -> Optional[LedgerEntry]:
    """The entry with the largest values that fitted, by the parameters that give way, in their order."""
    sizes = _sizes(spec)

    def size(entry: LedgerEntry) -> List[float]:
        return [_number(entry.params.get(name)) or 0.0 for name in sizes]

    return max((entry for entry in entries if entry.fitted), key=size, default=None)


def at_or_beyond(params: Params, other: Params, on_oom: Optional[OnOom]) -> bool:
    """Do `params` need at least the memory that `other` needs? Every number is as large, every text the same.

    What only makes up for a reduced parameter in a product that is kept (accumulation) does not count.
    """
    partners = set(on_oom.keep_product) - set(on_oom.reduce) if on_oom is not None else set()
    if set(params) != set(other):
        return False
    return all(_no_smaller(value, other[name]) for name, value in params.items() if name not in partners)


def standing(entries: Sequence[LedgerEntry], on_oom: Optional[OnOom]) -> List[LedgerEntry]:
    """The failures that no later attempt with the same or larger values has disproved."""
    found = []
    for place, entry in enumerate(entries):
        later = (other for other in entries[place + 1 :] if other.fitted)
        if entry.too_big and not any(at_or_beyond(other.params, entry.params, on_oom) for other in later):
            found.append(entry)
    return found


def with_code(entries: Iterable[LedgerEntry], code: Optional[Mapping[str, Any]]) -> List[LedgerEntry]:
    """Without failures of what is known to be other code: it may need less now. What fitted stays worth a try."""
    return [entry for entry in entries if not entry.too_big or not _other_commit(entry.code, code)]


def _other_commit(one: Optional[Mapping[str, Any]], other: Optional[Mapping[str, Any]]) -> bool:
    commits = [code.get("commit") if code else None for code in (one, other)]
    return None not in commits and commits[0] != commits[1]


def _same_command(spec: RunSpec, entry: LedgerEntry) -> bool:
    """Are the rendered command and its environment the same, but for the sizes that give way?"""
    sizes = _sizes(spec)
    rest = [name for name in spec.params if name not in sizes]
    return all(spec.params[name] == entry.params.get(name) for name in rest) and entry.env == env_of(spec, entry.params)


def with_env(entries: Iterable[LedgerEntry], spec: RunSpec) -> List[LedgerEntry]:
    """Without failures in what is known to be another environment than the spec gives these values."""
    return [
        entry for entry in entries if not entry.too_big or entry.env is None or entry.env == env_of(spec, entry.params)
    ]


def _same_code(one: Optional[Mapping[str, Any]], other: Optional[Mapping[str, Any]]) -> bool:
    if not one or not other or one.get("dirty") is not False or other.get("dirty") is not False:
        return False
    return bool(one.get("commit")) and one["commit"] == other.get("commit")


def _sizes(spec: RunSpec) -> List[str]:
    return list(dict.fromkeys([*spec.on_oom.reduce, *spec.on_oom.at_load])) if spec.on_oom is not None else []


def _no_smaller(value: Scalar, other: Scalar) -> bool:
    one, two = _number(value), _number(other)
    return value == other if one is None or two is None else one >= two


def _number(value: object) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _values(params: Params, names: Iterable[str]) -> str:
    return " ".join(f"{name}={params[name]}" for name in names if name in params)


def _memory(entry: LedgerEntry) -> str:
    if entry.peak_mib is None or entry.total_mib is None:
        return ""
    return f" with {entry.peak_mib / 1024:.1f} of {entry.total_mib / 1024:.1f} GiB"
