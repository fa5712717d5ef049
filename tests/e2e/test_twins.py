"""Each twin in jobs/ from launch to end: it fails as the real job failed, and comes back as the real one should."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.site import REPOSITORY, Site


def launched(site: Site, name: str, *sets: str) -> str:
    words = [word for value in sets for word in ("--set", value)]
    return str(site("launch", str(REPOSITORY / "jobs" / f"{name}.yaml"), *words, "--json").json()["run"])


def attempts(site: Site, run: str, param: str) -> list[Any]:
    return [event["params"][param] for event in site.journal(run, "attempt_started")]


@pytest.mark.parametrize("name", ["eagle3-prepare-sim", "eagle3-vocab-sim"])
def test_those_without_gpus(name: str, site: Site) -> None:
    run = launched(site, name, "speed=1000")
    assert site.await_end(run)["state"] == "succeeded"
    assert site.row(run)["gpus"] == []
    assert site.log(run)


def test_training_gives_way_to_the_length_that_fits(site: Site) -> None:
    run = launched(site, "eagle3-train-sim", "speed=1000", "max_steps=20")
    finished = site.await_end(run)
    assert finished["state"] == "succeeded", finished
    assert attempts(site, run, "max_seq_len") == [32768, 24576, 16384]
    incidents = site.journal(run, "incident")
    assert [incident["class"] for incident in incidents] == ["gpu_oom", "gpu_oom"]
    assert all(incident["requested_bytes"] and incident["free_bytes"] is not None for incident in incidents)
    explained = site("explain", run, "--json").json()
    assert (explained["class"], explained["attempt"]) == ("gpu_oom", 2)
    assert site.used_mib("sim") == 0


def test_the_drafters_thread_dies_while_its_process_lives(site: Site) -> None:
    run = launched(site, "dflash-train-sim", "speed=600", "steps=40")
    finished = site.await_end(run, within_s=90)
    assert finished["state"] == "succeeded", (finished, site.journal(run, "incident"))
    incident = site.journal(run, "incident")[0]
    assert (incident["class"], incident["gpu"]) == ("gpu_oom", 7)
    first_exit = site.journal(run, "attempt_exited")[0]
    assert first_exit["seq"] > incident["seq"], "it would have lived on: the run ended it"
    assert attempts(site, run, "block_size")[-1] < 24
    assert site.used_mib("sim") == 0
