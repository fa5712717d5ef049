"""Values that a message states, taken at once where it is plain whose they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuctl.watchdog.policy import decide
from gpuctl.watchdog.stated import stated_limit
from gpuctl.wire.incidents import AttemptRecord, Evidence, Incident
from gpuctl.wire.names import FailureClass
from gpuctl.wire.runspec import OnOom, RunSpec

V0 = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
    "cache (54320). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
V1 = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (9.81 GiB). Based on the available memory, the estimated "
    "maximum model length is 80352. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)
BLOCKS = "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (120). Reduce `max_num_seqs`."
PARAMS = {"max_model_len": 131072, "max_num_seqs": 256}
BOTH = ["max_num_seqs", "max_model_len"]


def _incident(text: str, cls: FailureClass = "kv_cache_too_small") -> Incident:
    return Incident(cls, True, evidence=[Evidence(cls, text)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V0, ("max_model_len", 54320)),
        (V1, ("max_model_len", 80352)),
        (BLOCKS, ("max_num_seqs", 120)),
        ("Please decrease --max-num-seqs to at most 64", ("max_num_seqs", 64)),
        ("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", None),
        ("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.00 GiB total capacity)", None),
        ("decrease --max-num-batched-tokens to 64", None),
    ],
)
def test_what_a_message_states(text: str, expected: tuple[str, int] | None) -> None:
    assert stated_limit(_incident(text), PARAMS, BOTH) == expected


def test_a_parameter_of_another_name_is_known_by_its_value() -> None:
    assert stated_limit(_incident(V0), {"context": 131072, "seqs": 8}, ["seqs", "context"]) == ("context", 54320)
    assert stated_limit(_incident(V0), {"seqs": 131072 * 2}, ["seqs"]) is None


def _decided(text: str, on_oom: OnOom, **params: int) -> tuple[str, dict[str, object], str]:
    spec = RunSpec("vllm-1", "vllm", "sim", "vllm serve", params={**PARAMS, **params}, on_oom=on_oom, type="service")
    incident = _incident(text)
    action = decide(incident, spec, spec.params, [AttemptRecord(1, spec.params, incident)])
    return action.kind, dict(action.params), action.why


def test_it_is_taken_at_once() -> None:
    on_oom = OnOom(at_load=BOTH)
    kind, params, why = _decided(V1, on_oom)
    assert (kind, params) == ("relaunch", {**PARAMS, "max_model_len": 80352})
    assert "80352" in why
    assert _decided(V1, replace(on_oom, multiple_of={"max_model_len": 1024}))[1]["max_model_len"] == 79872
    listed = replace(on_oom, values={"max_model_len": [131072, 65536, 32768]})
    assert _decided(V1, listed)[1]["max_model_len"] == 65536
    assert _decided(BLOCKS, on_oom)[1] == {**PARAMS, "max_num_seqs": 120}


def test_below_the_floor_nothing_is_tried() -> None:
    kind, _, why = _decided(V1, OnOom(at_load=BOTH, floor={"max_model_len": 100000}))
    assert kind == "stop"
    assert "80352" in why


def test_without_a_stated_value_the_ladder_goes_down() -> None:
    kind, params, _ = _decided("RuntimeError: Not enough memory to allocate KV cache.", OnOom(at_load=BOTH))
    assert (kind, params) == ("relaunch", {**PARAMS, "max_num_seqs": 128})
