"""By the commands alone: a run goes on from its checkpoints, a service finds what fits, a clash is refused."""

from __future__ import annotations

import os

from tests.e2e.site import Site

TRAIN = """
name: train
node: sim
gpus: 1
workdir: {work}
command: |
  sh train.sh --batch-size {{batch_size}}
params: {{batch_size: 8}}
on_failure: {{relaunch: 3, backoff: 0}}
resume: {{when: "out/ckpt/step_*.pt", append: "--resume {{latest}}"}}
outputs: {{paths: [out/], on_relaunch: archive}}
watch: {{progress: 'step (?P<done>\\d+)/(?P<total>\\d+)'}}
"""

SCRIPT = r"""
mkdir -p out/ckpt
echo "args: $*"
echo $GPUCTL_ATTEMPT >out/metrics
case $GPUCTL_ATTEMPT in
    1) echo "step 1/9"
       echo whole >out/ckpt/step_1.pt; sleep 0.05; printf 'PK\003\004 cut off' >out/ckpt/step_2.pt; exit 1;;
    2) echo 'RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory'; exit 1;;
esac
echo "step 9/9"
"""


def test_a_training_goes_on_where_it_was(site: Site) -> None:
    (site.work / "train.sh").write_text(SCRIPT)
    site.job(TRAIN.format(work=site.work))
    (site.work / "out/ckpt").mkdir(parents=True)
    (site.work / "out/ckpt/step_0.pt").write_text("of an older run")
    os.utime(site.work / "out/ckpt/step_0.pt", (1e9, 1e9))
    run = site("launch", "job.yaml", "--json").json()["run"]
    site.await_end(run)
    started = site.journal(run, "attempt_started")
    latest = str(site.work / "out/ckpt/step_1.pt")
    assert [event.get("resumed_from") for event in started][:2] == [None, latest], "the cut one is passed over"
    assert site.log(run, 2).decode().splitlines()[0] == f"args: --batch-size 8 --resume {latest}"
    assert sorted(os.listdir(site.work / "out/ckpt")) == ["step_0.pt", "step_1.pt", "step_2.pt"]
    assert (site.work / "out.attempt-1/metrics").read_text() == "1\n"
    shown = site("events", run).out
    assert f"from {latest}" in shown
    assert "set aside" in shown
    site("relaunch", run)
    site.await_end(run)
    assert site.journal(run, "attempt_started")[-1].get("resumed_from") is None, "what is damaged stays given up"
    site("rm", run, "--archives", "--yes")
    assert not (site.work / "out.attempt-1").exists()
    assert (site.work / "out/ckpt/step_1.pt").exists()


def test_outputs_of_a_live_run_are_nobody_elses(site: Site) -> None:
    site.job(TRAIN.format(work=site.work))
    (site.work / "train.sh").write_text("echo begun; exec sleep 300")
    run = site("launch", "job.yaml", "--json").json()["run"]
    refused = site("launch", "job.yaml", code=5)
    assert run in refused.err
    site("kill", run, "--yes")


SERVE = """
name: serve
node: sim
gpus: 1
workdir: {work}
command: sh serve.sh {{max_model_len}}
params: {{max_model_len: 32768}}
type: service
on_oom: {{at_load: max_model_len}}
"""

SERVER = """
if [ $1 -gt 7344 ]; then
    echo "Starting to load model x"
    echo "Traceback (most recent call last):"
    echo "ValueError: The model's max seq len ($1) is larger than the maximum number of tokens that can be stored in \
KV cache (7344). Try increasing \\`gpu_memory_utilization\\` or decreasing \\`max_model_len\\`."
    exit 1
fi
echo "INFO:     Application startup complete."
sleep 1
"""


def test_a_service_takes_what_the_message_states_and_fails_when_it_ends(site: Site) -> None:
    (site.work / "serve.sh").write_text(SERVER)
    site.job(SERVE.format(work=site.work))
    run = site("launch", "job.yaml", "--json").json()["run"]
    finished = site.await_end(run)
    lengths = [event["params"]["max_model_len"] for event in site.journal(run, "attempt_started")]
    assert lengths == [32768, 7344]
    assert site.journal(run, "incident")[0]["class"] == "kv_cache_too_small"
    assert finished["state"] == "failed", "nobody asked it to end"
    assert site("replay", run, "--json").json()["attempts"][0]["differs"] is False
