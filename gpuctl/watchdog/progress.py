"""How far a job is, from the lines that its framework prints anyway."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

_METRIC = (
    r"(?=.{0,120}?(?:loss|\blr\b|acc|ppl|tok|it/s|s/it|sec/step|throughput|elapsed|samples|reward"
    r"|\bbs\b|auc|img/s|ms\b))"
)
_COUNT = r"(\d[\d,]*(?:\.\d+)?[kmg]?)"
_LABEL = 60  # characters before a bar that say what it counts
_STEP = r"\b(?:global_?\s?step|step|iter(?:ation)?|minibatch|batch|update|num_updates|it)s?"


def _form(name: str, needs: str, source: str) -> Tuple[str, str, "re.Pattern[str]"]:
    return name, needs, re.compile(source)


_FORMS = (
    _form(
        "", "%|", r"\d+%\|[^|]{0,200}\|\s*" + _COUNT + "/" + _COUNT + r" ?\["
    ),  # tqdm, Lightning, "Processed prompts"
    _form("keras", "] -", r"^\s*(\d+)/(\d+) \[[=>.]*\]"),
    _form("keras", "━", r"^\s*(\d+)/(\d+) [━\s]{5,}"),
    _form("iteration", "iteration", r"\biteration\s+(\d+)\s*/\s*(\d+)"),  # Megatron
    _form("step", "/", _STEP + r"\s?[:=#]?\s?\[?\s*(\d+)\s*/\s*(\d+)"),
    _form("step", " of ", _STEP + r"\s?[:=#]?\s?(\d+) of (\d+)"),
    _form("batch", "/", r"\bepoch:?\s?\[?\d+\]?:?\s*\[?\s*(\d+)\s*/\s*(\d+)\]?(?=.*\d)"),  # Epoch: [3][10/500], fairseq
    _form("done", "/", r"\b(?:done|processed|finished|completed)\s+(\d+)\s*/\s*(\d+)"),
    _form("epoch", "epoch", r"\bepoch[:=]?\s*\[?\s*(\d+)\s*/\s*(\d+)"),
    _form("epoch", "loss", r"^\[(\d+)/(\d+)\](?=.*loss)"),
    _form("step", "", _STEP + r"\b\s?[:=#]?\s?(\d+)\b()" + _METRIC),
    _form("epoch", "epoch", r"\bepoch\b\s?[:=#]?\s?(\d+)\b()" + _METRIC),
    _form("trainer", "'epoch'", r"^\{'\w*loss'.*'epoch': ([\d.]+)()"),  # transformers' Trainer
)
_HINTS = ("/", "step", "epoch", "it ", "iter", "batch", "update")
_LOADING_BAR = re.compile(
    r"load|fetch|download|shard|safetensors|\bmap\b|tokeni|captur|compil|initiali|generating .* split|filter|resolving",
    re.IGNORECASE,
)
_LOADING_LINE = re.compile(
    r"\b(?:start\w* (?:to )?load|load(?:ing)?) (?:the )?(?:\w+ )?(?:model|weights?|checkpoint|shards?"
    r"|parameters|params|tensors|engine|state|safetensors|pretrained)"
    r"|initiali[sz]ing (?:\w+ )?(?:model|param\w*|weights)|\bllm_load|\bload_tensors|load weight begin",
    re.IGNORECASE,
)
_SCALE = {"k": 1e3, "m": 1e6, "g": 1e9}


class Counter(NamedTuple):
    """A counter's reading. The same `key` is the same counter; `loading` where it counts what precedes the work."""

    key: str
    done: float
    total: Optional[float]
    loading: bool


def read_counter(text: str) -> Optional[Counter]:
    """The line's counter, None where it has none."""
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    for name, needs, pattern in _FORMS:
        found = pattern.search(lowered) if needs in lowered else None
        if found:
            done, total = found.groups()
            label = (
                text[max(0, found.start() - _LABEL) : found.start()].rpartition("|")[2].strip(": ") if not name else ""
            )
            loading = bool(label and _LOADING_BAR.search(label))
            return Counter(f"{name}{label}/{total}", _number(done), _number(total) if total else None, loading)
    return None


def says_loading(text: str) -> bool:
    """Does the line say that a model is being loaded?"""
    return bool(_LOADING_LINE.search(text))


def _number(text: str) -> float:
    scale = _SCALE.get(text[-1:], 1.0)
    return float((text[:-1] if text[-1:] in _SCALE else text).replace(",", "")) * scale
