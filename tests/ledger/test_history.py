"""`gpuctl history`, by the command alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site
from tests.ledger.test_file import TRAIN
from tests.parts.leftovers import end_all

JOB = f"""\
name: train
node: sim
gpus: 2
command: python3 -c "{TRAIN}" {{size}} {{seed}}
params: {{size: 500000, seed: 1}}
on_oom: {{reduce: size, known_good: 5000}}
"""


class Priced(Site):
    def _inventory(self, folder: Path) -> str:
        return super()._inventory(folder).replace("{transport: local,", "{transport: local, gpu_hour_cost: 3600,")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Priced(tmp_path)
    end_all(tmp_path)


@pytest.fixture
def run(site: Site) -> str:
    site.job(JOB)
    launched = str(site("launch", "job.yaml", "--json").json()["run"])
    assert site.await_end(launched)["state"] == "succeeded"
    return launched


def only(found: dict[str, Any]) -> dict[str, Any]:
    (run,) = found["runs"]
    return dict(run)


def test_what_fitted_what_failed_and_what_it_cost(site: Site, run: str) -> None:
    document = site("history", "--json").json()
    past = only(document)
    assert (past["run"], past["state"], past["job"], past["removed"]) == (run, "succeeded", "train", False)
    *failed, fitted = past["attempts"]
    assert failed and all(attempt["class"] == "gpu_oom" and not attempt["fitted"] for attempt in failed)
    assert fitted["fitted"] and fitted["class"] is None and fitted["gpus"] == 2
    lost = sum(attempt["duration_s"] for attempt in failed) * 2 / 3600
    assert past["gpu_hours_lost"] == pytest.approx(lost, abs=1e-5)
    assert past["gpu_hours"] > past["gpu_hours_lost"] > 0
    assert document["cost_lost"] == pytest.approx(lost * 3600, rel=0.01)
    (known,) = document["values"]
    assert (known["gpus"], len(known["fitted"]), len(known["failed"])) == (2, 1, len(failed))
    shown = site("history", "train")
    assert f"size={fitted['params']['size']} (" in shown.out and "size=500000 gpu_oom" in shown.out
    assert "seed" not in shown.out, "it never changed"
    assert "COST LOST" in shown.out and "lost to failures" in shown.err


def test_it_is_there_after_the_run_is_removed(site: Site, run: str) -> None:
    site("rm", run)
    past = only(site("history", "--json").json())
    assert (past["run"], past["state"], past["removed"]) == (run, "succeeded", True)
    assert len(past["attempts"]) > 1
    assert run in site("history").out


def test_a_job_may_be_named_by_its_file(site: Site, run: str) -> None:
    assert only(site("history", "job.yaml", "--json").json())["run"] == run
    assert "no run of a job 'nothing'" in site("history", "nothing", code=3).err


def test_nothing_yet(site: Site) -> None:
    assert site("history").err.strip() == "no past runs"
    assert site("history", "--json").json()["runs"] == []


def test_of_a_node_that_can_not_be_reached_it_tells_what_was_seen(site: Site, run: str) -> None:
    site("ps", "-a")
    text = site.inventory.read_text()
    site.inventory.write_text(
        text.replace("{transport: local,", "{address: 127.0.0.1, port: 1, ssh_config: /dev/null,")
    )
    done = site("history", "--json", code=4)
    past = only(done.json())
    assert (past["run"], past["state"], past["attempts"]) == (run, "succeeded", [])
    assert "gpuctl:" in done.err
    assert "(not asked)" in site("history", code=4).out
