"""The largest value that a message states: an engine that can't load often says what would fit.

    The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (7344).
    … the estimated maximum model length is 20480. Try … decreasing `max_model_len` …
    max_num_seqs (256) exceeds available Mamba cache blocks (120)

Only a value for a parameter that the job lets give way counts, and only where the message leaves no doubt which one it
means: by its name, or by the value that it has now.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Sequence, Tuple, Union

from gpuctl.watchdog.ladder import Exhausted, Seen, Step, step_to
from gpuctl.wire.incidents import Incident
from gpuctl.wire.runspec import OnOom, Scalar

_NUMBER = r"(\d[\d,_]*)"
_LIMITS = (
    re.compile(rf"estimated (?:maximum|max)[\w -]*? (?:is|of|=|:) *{_NUMBER}", re.IGNORECASE),
    re.compile(
        rf"\(\d[\d,_]*\)[^()]{{0,40}}(?:larger|greater|more|bigger) than[^()]{{0,120}}\({_NUMBER}\)", re.IGNORECASE
    ),
    re.compile(rf"\(\d[\d,_]*\)[^()]{{0,20}}exceeds[^()]{{0,120}}\({_NUMBER}\)", re.IGNORECASE),
    re.compile(rf"(?:reduce|decrease|lower|limit|set)\s+\S+ to (?:at most |below |<= ?)?{_NUMBER}\b", re.IGNORECASE),
    re.compile(
        rf"\b(?:can|could) (?:only )?(?:hold|fit|serve|store) (?:only |at most |up to ){_NUMBER}", re.IGNORECASE
    ),
    re.compile(rf"maximum (?:supported|allowed|possible)[\w -]*? (?:is|of|=|:) *{_NUMBER}", re.IGNORECASE),
)


def stated_limit(incident: Incident, params: Mapping[str, Scalar], names: Sequence[str]) -> Optional[Tuple[str, int]]:
    """The parameter among `names`, and the largest value for it that the incident's evidence states."""
    for evidence in incident.evidence:
        for pattern in _LIMITS:
            found = pattern.search(evidence.text)
            if found is None:
                continue
            limit = _whole(found.group(1))
            meant = _meant(evidence.text, params, [name for name in names if _below(limit, params.get(name))])
            if meant is not None and limit > 0:
                return meant, limit
    return None


def as_stated(
    incident: Incident, on_oom: OnOom, params: Mapping[str, Scalar], seen: Seen, names: Sequence[str]
) -> Union[Step, Exhausted, None]:
    """The step to the largest value that the message says would fit. None where it states none of ours, or one that
    has failed all the same."""
    stated = stated_limit(incident, params, names)
    if stated is None:
        return None
    name, limit = stated
    changed = step_to(on_oom, params, seen, name, limit)
    if changed is None:
        return None
    if isinstance(changed, Exhausted):
        return Exhausted(f"as the message states, {changed.why}")
    return Step(changed, f"{name} {params[name]} → {changed[name]}, as the message states")


def _meant(text: str, params: Mapping[str, Scalar], names: Sequence[str]) -> Optional[str]:
    """The one parameter that the text can mean: whose present value it quotes, else whose name."""
    numbers = {_whole(number) for number in re.findall(_NUMBER, text)}
    plain = _plain(text)
    for fitting in (
        [name for name in names if params[name] in numbers],
        [name for name in names if f" {_plain(name)} " in f" {plain} "],
    ):
        if len(fitting) == 1:
            return fitting[0]
    return None


def _plain(text: str) -> str:
    """Words only: `max_model_len`, `--max-model-len` and "max model len" are one name."""
    words: List[str] = re.findall(r"[a-z0-9]+", text.lower())
    return " ".join(words)


def _whole(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _below(limit: int, value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and limit < value
