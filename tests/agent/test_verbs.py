"""Each verb's typed form, against the real program on a node behind a real sshd, with simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gpuctl.agent import Agent, Chunk
from gpuctl.agent.calling import CALL_S
from gpuctl.bundle import build
from gpuctl.errors import GpuctlError, NodeUnfit, NotFound, UsageError
from gpuctl.node.telemetry import INIT_DEADLINE_S
from gpuctl.spec.inventory import Node, Simulate
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import RunSpec
from tests.agent.conftest import bundle_of, with_agent
from tests.parts.sshd import Sshd, running_sshd


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def sim(own_sshd: Sshd) -> Node:
    return own_sshd.node(name="sim", simulate=Simulate(gpus=2), keepalive=1)


def spec(tmp_path: Path, command: str, run: str = "job-1", **keys: object) -> RunSpec:
    return RunSpec(run=run, job="job", node="sim", command=command, workdir=str(tmp_path), **keys)  # type: ignore[arg-type]


def test_a_run_from_start_to_removal(sim: Node, tmp_path: Path) -> None:
    async def story(agent: Agent) -> None:
        started = await agent.start(
            spec(tmp_path, "printf 'a\\nb\\n'; echo $WORD", secrets=["WORD"]), secrets={"WORD": "c"}
        )
        assert (started.run.run, started.run.node) == ("job-1", "sim")
        events = [event async for event in agent.events("job-1", follow=True)]
        assert events[-1]["type"] == "run_finished" and events[-1]["state"] == "succeeded"
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        chunks = [chunk async for chunk in agent.log("job-1")]
        assert b"".join(chunk.data for chunk in chunks).endswith(b"a\nb\nc\n")
        assert all(isinstance(chunk, Chunk) and chunk.attempt == 1 for chunk in chunks)
        (row,) = await agent.ps()
        assert (row.run, row.state, row.attempt) == ("job-1", "succeeded", 1)
        seen = {event["event"]["type"] async for event in agent.watch(runs=["job-1"]) if "event" in event}
        assert "run_finished" in seen
        assert "job-1" in str((await agent.remove(runs=["job-1"]))["removed"])
        assert await agent.ps(all=True) == []

    with_agent(sim, story, build())


def test_a_connection_cut_under_a_run_changes_nothing_for_it(sim: Node, own_sshd: Sshd, tmp_path: Path) -> None:
    async def story(agent: Agent) -> None:
        gate = tmp_path / "gate"
        await agent.start(spec(tmp_path, f"until test -e {gate}; do sleep 0.05; done; echo passed"), secrets={})
        own_sshd.cut()
        assert [row.run for row in await agent.ps()] == ["job-1"]
        gate.write_text("")
        *_, last = [event async for event in agent.events("job-1", follow=True)]
        assert last["state"] == "succeeded"

    with_agent(sim, story, build())


def test_a_request_and_its_end(sim: Node, tmp_path: Path) -> None:
    async def story(agent: Agent) -> None:
        await agent.start(spec(tmp_path, "sleep 1000"), secrets={})
        answers = [event async for event in agent.request("job-1", Request(id="r1", kind="kill", by="me"))]
        assert answers[-1]["type"] == "run_finished" and answers[-1]["state"] == "killed"

    with_agent(sim, story, build())


def test_devices_and_facts(sim: Node) -> None:
    async def story(agent: Agent) -> None:
        gpus = await agent.gpus()
        assert [row.device.index for row in gpus.devices] == [0, 1]
        async for followed in agent.follow_gpus(every_s=0.1):
            assert len(followed.devices) == 2
            break
        assert (await agent.clean(dry_run=True)).empty is True
        assert (await agent.probe())["user"]["home"]

    with_agent(sim, story, build())


def test_a_driver_that_hangs_is_said_to_hang_before_any_deadline_passes(
    local: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each verb that reads the GPUs waits longer than the node waits for their first reading."""
    allowed: dict[str, float] = {}

    async def noted(_self: Agent, verb: str, *, deadline_s: float = CALL_S, **_: object) -> dict[str, object]:
        allowed[verb] = deadline_s
        raise NotFound("nobody was asked")

    async def story(agent: Agent) -> None:
        for call in (
            agent.gpus(), agent.probe(), agent.clean(), agent.start(RunSpec("a-1", "a", "gpu1", "true"), secrets={})
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await call

    monkeypatch.setattr(Agent, "call", noted)
    with_agent(local, story)
    assert set(allowed) == {"gpus", "probe", "clean", "start"}
    assert min(allowed.values()) >= 2 * INIT_DEADLINE_S


def test_a_run_that_is_not_there(sim: Node) -> None:
    async def story(agent: Agent) -> None:
        with pytest.raises(NotFound):
            await anext(agent.events("none-1"))

    with_agent(sim, story, build())


def test_a_fault_of_ours_is_no_wrong_usage_of_theirs(sim: Node) -> None:
    async def story(agent: Agent) -> None:
        with pytest.raises(GpuctlError, match=r"ValueError.*\(verbs.py:\d+\)") as caught:
            await agent.call("events", run="a-1", after="many")
        assert (caught.value.exit_code, "report" in caught.value.hint) == (1, True)
        with pytest.raises(UsageError, match="did not understand"):
            await agent.call("events", node=7)

    with_agent(sim, story, build())


async def first(stream: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
    async with aclosing(stream):
        return await anext(stream)


ROW = {"run": "a-1", "job": "a", "node": "n", "state": "running"}
DEVICE = {"index": 0, "uuid": "GPU-0"}


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("ps", {}),
        ("ps", {"runs": 7}),
        ("ps", {"runs": [{"half": 1}]}),
        ("ps", {"runs": [ROW, {**ROW, "state": 7}]}),
        ("ps", {"runs": [{**ROW, "gpus": "01"}]}),
        ("ps", {"runs": [{**ROW, "attempt": "first"}]}),
        ("ps", {"runs": [{**ROW, "params": [1]}]}),
        ("ps", {"runs": [{**ROW, "progress": 3}]}),
        ("start", {"run": None}),
        ("start", {"run": ROW, "warnings": 7}),
        ("start", {"run": ROW, "warnings": [7]}),
        ("gpus", {"devices": None}),
        ("gpus", {"devices": [], "driver": 5}),
        ("gpus", {"devices": [{"device": DEVICE, "holders": [{"pid": "one"}]}]}),
        ("gpus", {"devices": [{"device": {**DEVICE, "power_w": "much"}}]}),
        ("clean", {"clean": {"dry_run": True, "killed": [{}]}}),
        ("clean", {"clean": {"dry_run": True, "memory_mib": {"0": "full"}}}),
        ("probe", {"facts": 7}),
        ("remove", {"removed": ["a-1"], "kept": []}),
        ("ledger", {"entries": [{"run": "a-1"}], "removed": []}),
        ("replay", {"attempts": 3}),
        ("events", {"seq": "1", "type": "note"}),
        ("events", {"seq": 1}),
        ("events", {"seq": 1, "type": "note", "time": 7}),
        ("request", {"seq": 1, "type": "note", "attempt": "one"}),
    ],
)
def test_answers_that_are_not_what_a_verb_promises(local: Node, verb: str, answer: dict[str, object]) -> None:
    async def story(agent: Agent) -> None:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "ps": agent.ps,
            "start": lambda: agent.start(RunSpec("a-1", "a", "n", "true"), secrets={}),
            "gpus": agent.gpus,
            "clean": agent.clean,
            "probe": agent.probe,
            "remove": agent.remove,
            "ledger": agent.ledger,
            "replay": agent.replay,
            "events": lambda: first(agent.events("a-1")),
            "request": lambda: first(agent.request("a-1", Request(id="r", kind="kill"))),
        }
        with pytest.raises(NodeUnfit, match="not what its verb promises"):
            await calls[verb]()

    with_agent(local, story, bundle_of(f"import sys; sys.stdin.readline(); print({json.dumps(answer)!r})"))
