"""What one supervisor has told of an attempt, the next one does not tell again."""

from __future__ import annotations

from tests.parts.node import TestNode
from tests.waiting import wait_until

NAN = "for n in 1 2 3 4 5 6; do echo step $n/900 loss nan; done; until [ -e {gate} ]; do sleep 0.1; done"


def test_a_finding_is_in_the_journal_once(sim: TestNode) -> None:
    gate = sim.folder / "gate"
    sim.start(sim.job(NAN, params={"gate": str(gate)}))
    wait_until(lambda: sim.events(type="incident"), what="the finding")
    for nth in (1, 2):
        sim.kill_9("supervise")
        wait_until(lambda nth=nth: len(sim.events(type="supervisor_started")) >= nth, what="the next supervisor")
    gate.touch()
    sim.wait_over()
    assert [(event["class"], event["fatal"]) for event in sim.events(type="incident")] == [("nan_loss", False)]
