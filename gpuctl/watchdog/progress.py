"""How far a job is, from the lines that its framework prints anyway."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

_METRIC = r"(?=.{0,120}?(?:loss|\blr\b|acc|ppl|tok|it/s|s/it|sec/step|throughput|elapsed|samples|reward|\bbs\b|auc|img/s|ms\b))"
_COUNT = r"(\d[\d,]*(?:\.\d+)?[kMG]?)"
_FORMS: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    # tqdm, Lightning, vLLM's "Processed prompts": description, done/total
    ("", re.compile(r"([^|\r]{0,60}?):?\s*\b\d+%\|[^|]{0,200}\|\s*" + _COUNT + "/" + _COUNT + r" ?\[")),
    ("keras", re.compile(r"()^\s*(\d+)/(\d+) (?:\[[=>.]*\]|[━\s]{5,})")),
    ("iteration", re.compile(r"()\biteration\s+(\d+)\s*/\s*(\d+)", re.IGNORECASE)),  # Megatron
    ("step", re.compile(r"()\b(?:global_?step|step|iter(?:ation)?|batch|minibatch|update)s?\s?[:=#]?\s?\[?\s*(\d+)\s*(?:/|of)\s*(\d+)", re.IGNORECASE)),
    ("batch", re.compile(r"()\bepoch:?\s?\[?\d+\]?:?\s*\[?\s*(\d+)\s*/\s*(\d+)\]?(?=.*\d)", re.IGNORECASE)),  # Epoch: [3][10/500], fairseq
    ("done", re.compile(r"()\b(?:done|processed|finished|completed)\s+(\d+)\s*(?:/|of)\s*(\d+)", re.IGNORECASE)),
    ("epoch", re.compile(r"()\bepoch[:=]?\s*\[?\s*(\d+)\s*/\s*(\d+)|^()\[(\d+)/(\d+)\](?=.*loss)", re.IGNORECASE)),
    ("step", re.compile(r"()\b(?:global_?\s?step|step|iter(?:ation)?|batch|update|num_updates|it)\b\s?[:=#]?\s?(\d+)\b()" + _METRIC, re.IGNORECASE)),
    ("epoch", re.compile(r"()\bepoch\b\s?[:=#]?\s?(\d+)\b()" + _METRIC, re.IGNORECASE)),
    ("trainer", re.compile(r"()^\{'\w*loss'.*'epoch': ([\d.]+)()")),  # transformers' Trainer
)  # fmt: skip
_HINTS = ("/", "step", "epoch", "iter", "batch", "update", "Step", "Epoch", "Iter", "Batch", "STEP")
_LOADING_BAR = re.compile(
    r"load|fetch|download|shard|safetensors|\bmap\b|tokeni|captur|compil|initiali|generating .* split|filter|resolving",
    re.IGNORECASE,
)
_LOADING_LINE = re.compile(
    r"\b(?:start\w* (?:to )?load|load(?:ing)?) (?:the )?(?:\w+ )?(?:model|weights?|checkpoint|shards?|parameters|params|tensors|engine|state|safetensors|pretrained)"
    r"|initiali[sz]ing (?:\w+ )?(?:model|param\w*|weights)|\bllm_load|\bload_tensors|load weight begin",
    re.IGNORECASE,
)
_SCALE = {"k": 1e3, "M": 1e6, "G": 1e9}


class Counter(NamedTuple):
    """A counter's reading. The same `key` is the same counter; `loading` where it counts what precedes the work."""

    key: str
    done: float
    total: Optional[float]
    loading: bool


def read_counter(text: str) -> Optional[Counter]:
    """The line's counter, None where it has none."""
    if not any(hint in text for hint in _HINTS):
        return None
    found_last: Optional[Counter] = None
    for name, pattern in _FORMS:
        found = pattern.search(text)
        if found:
            label, done, total = [group for group in found.groups() if group is not None][:3]
            loading = name == "" and bool(_LOADING_BAR.search(label))
            found_last = Counter(
                f"{name}{label.strip()}/{total}", _number(done), _number(total) if total else None, loading
            )
            break
    return found_last


def says_loading(text: str) -> bool:
    """Does the line say that a model is being loaded?"""
    return bool(_LOADING_LINE.search(text))


def _number(text: str) -> float:
    scale = _SCALE.get(text[-1:], 1.0)
    return float((text[:-1] if text[-1:] in _SCALE else text).replace(",", "")) * scale
