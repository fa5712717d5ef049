"""The trials in jobs/ from launch to end: a hang, a job that waits for its input, and a full main memory."""

from __future__ import annotations

from tests.e2e.site import Site
from tests.e2e.test_twins import attempts, launched


def test_a_hung_collective_is_found_ended_and_launched_again(site: Site) -> None:
    run = launched(site, "hung-collective-sim", "speed=60")
    finished = site.await_end(run, within_s=90)
    assert finished["state"] == "succeeded", (finished, site.journal(run, "incident"))
    (incident,) = site.journal(run, "incident")
    assert (incident["class"], incident["fatal"], incident["phase"], incident["gpu"]) == ("stalled", True, "train", 3)
    assert "rank on GPU 3" in incident["advice"]
    texts = [evidence["text"] for evidence in incident["evidence"]]
    assert any("at 100 % utilisation" in text for text in texts) and any(text.startswith("step 50/") for text in texts)
    assert attempts(site, run, "max_steps") == [100, 100], "it was not its size"
    assert site.journal(run, "recovered") == [], "the stacks that it printed at its end are no sign of life"
    assert site.used_mib("sim") == 0


def test_a_job_that_waits_for_its_input_is_told_of_and_goes_on(site: Site) -> None:
    run = launched(site, "input-bound-sim")
    finished = site.await_end(run, within_s=90)
    assert finished["state"] == "succeeded", finished
    (incident,) = site.journal(run, "incident")
    assert (incident["class"], incident["fatal"]) == ("low_power", False)
    assert "wait for input" in incident["advice"]
    assert attempts(site, run, "num_workers") == [1]


def test_a_full_main_memory_is_not_the_gpus(site: Site) -> None:
    run = launched(site, "host-oom-sim")
    finished = site.await_end(run, within_s=90)
    assert finished["state"] == "failed", finished
    (incident,) = site.journal(run, "incident")
    assert (incident["class"], incident["fatal"]) == ("host_oom", True), incident
    assert attempts(site, run, "num_workers") == [16]
    assert site.used_mib("sim") == 0
