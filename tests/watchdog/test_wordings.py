"""The rules on whole logs: each comes to its class, however its bytes arrive and whatever stands before it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.watchdog.explain import Explanation, explain
from tests.watchdog.wordings import Wording, wordings

_ORDINARY = "".join(f"2026-01-02 10:00:00 | step {n}/90000 | loss 1.{n:05} | lr 3.0e-04\n" for n in range(30_000))


def _told(found: Explanation) -> tuple[str | None, bool, bool]:
    incident = found.incident
    return (incident.cls if incident else None, bool(incident and incident.fatal), found.relaunch_reduced)


@pytest.mark.parametrize("wording", wordings(), ids=lambda wording: wording.name.replace(" ", "-"))
def test_a_log_comes_to_its_class(wording: Wording) -> None:
    assert _told(explain([wording.log.encode()])) == (wording.cls, wording.fatal, wording.reducible)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(wordings()), st.integers(1, 97))
def test_it_does_not_matter_how_the_bytes_arrive(wording: Wording, size: int) -> None:
    data = wording.log.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert explain(pieces) == explain([data])


@pytest.mark.parametrize("wrap", ["\x1b[31m{}\x1b[0m", "{}\r", "[rank3]: {}", "trainer-0  | {}", "│ {:<700} │"])
def test_decoration_hides_nothing(wrap: str) -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 2 has a total capacity of 44.40"
        " GiB of which 610.31 MiB is free."
    )
    found = explain([("starting\n" + wrap.format(line) + "\n").encode()])
    assert found.incident is not None
    assert (found.incident.cls, found.incident.gpu) == ("gpu_oom", 2)
    assert found.incident.requested_bytes == int(1.25 * (1 << 30))


@pytest.mark.parametrize("name", ["torch in a step", "torchrun sigkill", "disk", "nccl timeout", "nan goes on"])
def test_a_failure_at_the_end_of_a_long_log_is_found(name: str) -> None:
    wording = next(wording for wording in wordings() if wording.name == name)
    found = explain([(_ORDINARY + wording.log).encode()])
    assert found.incident is not None
    assert found.incident.cls == wording.cls


def test_a_failure_in_the_middle_of_a_long_log_is_past() -> None:
    wording = next(wording for wording in wordings() if wording.name == "torch in a step")
    assert explain([(_ORDINARY + wording.log + _ORDINARY).encode()]).incident is None


def test_the_root_is_found_before_a_long_cascade() -> None:
    wording = next(wording for wording in wordings() if wording.name == "torch in a step")
    noise = "".join(f"[rank{n % 8}]: NCCL WARN Call to recv failed: connection closed {n}\n" for n in range(20_000))
    found = explain([(_ORDINARY + wording.log + noise).encode()])
    assert found.incident is not None
    assert found.incident.cls == "gpu_oom"
    assert (
        found.incident.evidence[0].line == 30_000 + wording.log.count("\n") or found.incident.evidence[0].line > 30_000
    )


def test_the_json_has_the_promised_keys() -> None:
    wording = next(wording for wording in wordings() if wording.name == "torch in a step")
    told = explain([wording.log.encode()]).to_json("train.log")
    assert told["file"] == "train.log"
    assert {"verdict", "class", "fatal", "phase", "gpu", "requested_bytes", "total_bytes", "free_bytes"} <= told.keys()
    assert told["evidence"][0].keys() == {"line", "text"}
    assert "asked for 1.2 GiB" in told["advice"]
    nothing = explain([b"all is well\n"]).to_json("x")
    assert nothing["class"] is None
    assert nothing["fatal"] is False
