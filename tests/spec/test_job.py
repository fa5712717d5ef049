"""A job file: every key, and every fault with file, line, key and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.spec.job import load_job
from tests.spec.files import SMALLEST, job, job_faults

CONTRACT = Path(__file__).with_name("contract_job.yaml")


def test_every_key_of_the_contract() -> None:
    loaded = load_job(CONTRACT)
    assert (loaded.name, loaded.node, loaded.gpus, loaded.workdir) == ("eagle3-extract", "sim", 8, "~/eagle3")
    assert loaded.setup == "source .venv/bin/activate\n"
    assert loaded.params == {"batch_size": 2000, "max_seq_len": 2048}
    assert loaded.env == {"WANDB_RUN_ID": "{run}", "WANDB_RESUME": "allow"}
    assert (loaded.secrets, loaded.type, loaded.launcher) == (["WANDB_API_KEY"], "task", "tmux")
    assert (loaded.timeout, loaded.stop.signal, loaded.stop.grace) == (43200, "TERM", 30)
    assert loaded.on_oom is not None
    assert (loaded.on_oom.reduce, loaded.on_oom.known_good, loaded.on_oom.floor) == (
        ["batch_size"],
        {"batch_size": 4},
        {"batch_size": 1},
    )
    assert (loaded.on_oom.factor, loaded.on_oom.max_relaunches, loaded.on_oom.max_lost) == (0.5, 6, 3600)
    assert loaded.watch.stall is not None and loaded.watch.stall.for_ == 900
    assert loaded.watch.low_power is not None and loaded.watch.low_power.below == 0.5
    assert loaded.callback is not None and loaded.callback.when == ["blocked", "failed", "lost", "succeeded"]


def test_what_is_left_out(tmp_path: Path) -> None:
    loaded = job(tmp_path, SMALLEST)
    assert (loaded.gpus, loaded.workdir, loaded.type, loaded.share, loaded.observe) == (1, "~", "task", False, False)
    assert (loaded.on_oom, loaded.timeout, loaded.launcher, loaded.node) == (None, None, None, None)
    assert loaded.on_busy.wait == 3600


@pytest.mark.parametrize(
    ("written", "gpus"), [("0", 0), ("8", 8), ("all", "all"), ("[0, 1, 2, 3]", [0, 1, 2, 3]), ("[2]", [2])]
)
def test_gpus_are_how_many_or_which(tmp_path: Path, written: str, gpus: object) -> None:
    assert job(tmp_path, SMALLEST + f"gpus: {written}\n").gpus == gpus


def test_numbers_in_env_stay_as_written(tmp_path: Path) -> None:
    loaded = job(tmp_path, SMALLEST + "env: {A: 1.10, B: 3e-5, C: 007, D: true, E: on, F: '5'}\n")
    assert loaded.env == {"A": "1.10", "B": "3e-5", "C": "007", "D": "true", "E": "on", "F": "5"}


def test_params_are_scalars_of_yaml_1_2(tmp_path: Path) -> None:
    loaded = job(tmp_path, SMALLEST + "params: {lr: 3e-5, flag: on, neg: no, when: 1:30:00, yes: true}\n")
    assert loaded.params == {"lr": 3e-5, "flag": "on", "neg": "no", "when": "1:30:00", "yes": True}


def test_several_parameters_give_way(tmp_path: Path) -> None:
    loaded = job(
        tmp_path,
        "name: many\ncommand: x {bs} {seq} {acc}\nparams: {bs: 64, seq: 4096, acc: 2}\n"
        "on_oom: {reduce: [bs, seq], floor: 2, multiple_of: {seq: 128}, values: {bs: [32, 8]}, known_good: {seq: 512},"
        " keep_product: [bs, acc], at_load: [seq], resume_changed: true}\n",
    )
    assert loaded.on_oom is not None
    assert loaded.on_oom.floor == {"bs": 2, "seq": 2}
    assert loaded.on_oom.multiple_of == {"seq": 128}
    assert loaded.on_oom.values == {"bs": [32, 8]}
    assert loaded.on_oom.keep_product == ["bs", "acc"]


@pytest.mark.parametrize("written", ["TERM", "SIGTERM", "term", "15"])
def test_a_signal_has_many_names(tmp_path: Path, written: str) -> None:
    assert job(tmp_path, SMALLEST + f"stop: {{signal: {written}}}\n").stop.signal == "TERM"


ONE_FAULT = [
    ("gpu: 2", "gpu: unknown key; did you mean gpus?"),
    ("on-oom: {}", "on-oom: unknown key; did you mean on_oom?"),
    ("gpus: two", "gpus: expected how many GPUs (0 = none), which (a list of GPU indices such as [0, 1]), or all"),
    ("gpus: -1", "gpus: expected how many GPUs"),
    ("gpus: 1.5", "gpus: expected how many GPUs"),
    ("gpus: true", "gpus: expected how many GPUs"),
    ("gpus: []", "gpus: expected a list of GPU indices such as [0, 1], got a list"),
    ("gpus: [0, 0]", "gpus: expected a list of GPU indices such as [0, 1], got one of them twice"),
    ("gpus: [a]", "gpus: expected a list of GPU indices such as [0, 1], got text 'a' in it"),
    ("node: 5", "node: expected text, got 5"),
    ("workdir: ''", "workdir: expected some text, got none"),
    ("setup: [a]", "setup: expected text, got a list"),
    ("params: [a]", "params: expected a mapping (key: value), got a list"),
    ("params: {a: [1]}", "params.a: expected text, a number, true or false, got a list"),
    ("params: {a: }", "params.a: expected text, a number, true or false, got nothing"),
    ("params: {a: .inf}", "params.a: expected a finite number, got inf"),
    ("params: {batch-size: 1}", "params.batch-size: expected a name of letters, digits and _"),
    ("params: {run: 1}", "params.run: {run} is gpuctl's own: take another name"),
    ("env: {A: [1]}", "env.A: expected text, got a list"),
    ("env: {1A: x}", "env.1A: expected the name of an environment variable, got '1A'"),
    ("env: {GPUCTL_RUN: x}", "env.GPUCTL_RUN: gpuctl sets it itself: take another name"),
    ("env: {CUDA_VISIBLE_DEVICES: '2'}", "env.CUDA_VISIBLE_DEVICES: the job may not set it: say which by gpus: [2, 3]"),
    ("secrets: [CUDA_VISIBLE_DEVICES]", "secrets[0]: the job may not set it: say which by gpus: [2, 3]"),
    ("setup: export CUDA_VISIBLE_DEVICES=1", "setup: sets CUDA_VISIBLE_DEVICES: say which by gpus: [2, 3]"),
    ("secrets: TOKEN", "secrets: expected a list, got text 'TOKEN'"),
    ("secrets: [A, A]", "secrets[1]: A is named twice"),
    ("type: deamon", "type: expected one of task, service, got text 'deamon'"),
    ("type: servce", "type: expected one of task, service, got text 'servce'; did you mean service?"),
    ("launcher: screen", "launcher: expected one of nohup, tmux, got text 'screen'"),
    ("timeout: soon", "timeout: expected a duration such as 30s, 15m, 1h30m or 2d (a number is seconds), got 'soon'"),
    ("timeout: 0", "timeout: expected a duration above zero"),
    ("timeout: [1]", "timeout: expected a duration such as 30s, 15m, 1h30m or 2d (a number is seconds), got a list"),
    ("stop: {signal: TREM}", "stop.signal: expected the name of a signal, got text 'TREM'; did you mean TERM?"),
    ("stop: {grce: 1s}", "stop.grce: unknown key; did you mean grace?"),
    ("share: on", "share: expected true or false, got text 'on'"),
    ("share: 1", "share: expected true or false, got 1"),
    ("on_oom: batch_size", "on_oom: expected a mapping (key: value), got text 'batch_size'"),
    ("on_oom: {}", "on_oom.reduce: is missing; expected the parameter that gives way, or several in their order"),
    ("on_failure: {relaunch: many}", "on_failure.relaunch: expected a whole number, got text 'many'"),
    ("on_failure: {relaunch: -1}", "on_failure.relaunch: expected a number at least 0, got -1"),
    ("policy: {nan_los: stop}", "policy.nan_los: expected one of gpu_oom"),
    ("policy: {nan_loss: stopp}", "policy.nan_loss: expected one of stop, alert, got text 'stopp'; did you mean stop?"),
    ("policy: {nan_loss: {relaunches: 1}}", "policy.nan_loss.relaunches: unknown key; did you mean relaunch?"),
    ("policy: {nan_loss: 3}", "policy.nan_loss: expected a mapping (key: value), got 3"),
    ("on_busy: {wait: long}", "on_busy.wait: expected a duration"),
    ("resume: {when: '*.pt'}", "resume.append: is missing; expected what to append to the command then"),
    ("resume: {when: '*.pt', append: '{newest}'}", "resume.append: {newest} is not a known name"),
    ("resume: {when: '{latest}', append: x}", "resume.when: {latest} is not a known name"),
    ("outputs: {paths: 5}", "outputs.paths: expected a text or a list of texts, got 5"),
    ("outputs: {on_relaunch: delete}", "outputs.on_relaunch: expected one of keep, archive, got text 'delete'"),
    ("watch: {progress: '('}", "watch.progress: expected a regular expression (Python's), got '(': missing )"),
    ("watch: {ready: '[a'}", "watch.ready: expected a regular expression"),
    ("watch: {stall: {action: alert}}", "watch.stall.for: is missing; expected how long there is no sign of life"),
    ("watch: {stall: {for: 1m, action: stop}}", "watch.stall.action: expected one of alert, relaunch, kill"),
    ("watch: {stall: {for: 1m, action: kill}}", "watch.stall.action: kill needs watch.progress"),
    ("watch: {low_power: {action: relaunch}}", "watch.low_power.action: relaunch needs watch.progress"),
    ("policy: {stalled: {relaunch: 2}}", "policy.stalled: needs watch.progress"),
    ("policy: {low_power: stop}", "policy.low_power: needs watch.progress"),
    ("watch: {low_power: {below: 50}}", "watch.low_power.below: expected a number at most 1, got 50"),
    ("watch: {logs: ['{rnak}.log']}", "watch.logs[0]: {rnak} is not a known name"),
    ("callback: {when: [done], run: x}", "callback.when[0]: expected one of queued"),
    ("callback: {when: [], run: x}", "callback.when: expected at least one, got an empty list"),
    ("env: {A: '{nme}'}", "env.A: {nme} is not a known name"),
    ("outputs: {paths: ['{jbo}']}", "outputs.paths[0]: {jbo} is not a known name: did you mean {job}?"),
    ("workdir: ~/{rnu}", "workdir: {rnu} is not a known name: did you mean {run}?"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "fault"), ONE_FAULT)
def test_one_fault(tmp_path: Path, line: str, fault: str) -> None:
    """Just this one: no fault brings forth others."""
    faults = job_faults(tmp_path, SMALLEST + line + "\n")
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"job.yaml:3: {fault}")


LADDER = "name: small\ncommand: train {bs} {lr} {name}\nparams: {bs: 64, lr: 0.1, name: x, acc: 1, flag: true}\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{reduce: b}", "reduce: b is no parameter; did you mean bs?"),
        ("{reduce: name}", "reduce: name must be a number to give way, and is text 'x'"),
        ("{reduce: flag}", "reduce: flag must be a number to give way, and is true"),
        ("{reduce: acc}", "reduce: acc stands nowhere: write {acc} in command, or nothing would change"),
        ("{reduce: []}", "reduce: expected at least one, got an empty list"),
        ("{reduce: [bs, bs]}", "reduce: names one parameter twice: bs, bs"),
        ("{reduce: 5}", "reduce: expected a text or a list of texts, got 5"),
        ("{reduce: bs, floor: 65}", "floor: 65 is above bs, which is 64"),
        ("{reduce: bs, floor: {lr: 1}}", "floor.lr: lr does not give way; what gives way is: bs"),
        ("{reduce: bs, floor: low}", "floor: expected a number for each parameter ({batch_size: …}), got text 'low'"),
        ("{reduce: bs, floor: 4, known_good: 2}", "known_good: 2 is below the floor of bs, 4"),
        ("{reduce: [bs, lr], known_good: 2}", "known_good: expected a number for each parameter"),
        ("{reduce: bs, factor: 1}", "factor: expected a number below 1, got 1"),
        ("{reduce: bs, factor: 0}", "factor: expected a number above 0, got 0"),
        ("{reduce: bs, multiple_of: 8, known_good: 12}", "known_good: 12 is no multiple of 8, as bs must be"),
        ("{reduce: bs, values: [64, 32, 16], known_good: 12}", "known_good: 12 is none of the values of bs"),
        ("{reduce: bs, multiple_of: 128}", "multiple_of: 128 is above bs, which is 64"),
        ("{reduce: bs, multiple_of: 1.5}", "multiple_of.bs: expected a whole number, got 1.5"),
        ("{reduce: bs, values: [a]}", "values.bs: expected a number, got text 'a'"),
        ("{reduce: bs, values: []}", "values.bs: expected a list of numbers, got a list"),
        ("{reduce: bs, keep_product: bs}", "keep_product: expected two parameters or more"),
        ("{reduce: bs, keep_product: [bs, ac]}", "keep_product: ac is no parameter; did you mean acc?"),
        ("{reduce: bs, at_load: seq}", "at_load: seq is no parameter"),
        ("{reduce: bs, max_relaunches: -1}", "max_relaunches: expected a number at least 0, got -1"),
        ("{reduce: bs, max_lost: 0}", "max_lost: expected a duration above zero"),
        ("{reduce: bs, max_relaunch: 1}", "max_relaunch: unknown key; did you mean max_relaunches?"),
    ],
)
def test_one_fault_of_the_ladder(tmp_path: Path, line: str, fault: str) -> None:
    faults = job_faults(tmp_path, LADDER + f"on_oom: {line}\n")
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"job.yaml:4: on_oom.{fault}")


def test_a_parameter_that_gives_way_is_above_zero(tmp_path: Path) -> None:
    faults = job_faults(tmp_path, "name: a\ncommand: x {n}\nparams: {n: 0}\non_oom: {reduce: n}\n")
    assert faults == ["job.yaml:3: params.n: expected a number above 0, since it gives way, got 0"]


def test_outputs_and_reduce_together_must_say_what_happens(tmp_path: Path) -> None:
    faults = job_faults(tmp_path, LADDER + "on_oom: {reduce: bs}\noutputs: {paths: [out/]}\n")
    assert len(faults) == 1 and faults[0].startswith("job.yaml:5: outputs.on_relaunch: is missing; with paths and")
    assert job(tmp_path, LADDER + "on_oom: {reduce: bs}\noutputs: {paths: [out/], on_relaunch: archive}\n")
    assert job(tmp_path, LADDER + "outputs: {paths: [out/]}\n")


def test_stall_may_end_a_job_whose_progress_is_known(tmp_path: Path) -> None:
    loaded = job(tmp_path, SMALLEST + "watch: {progress: 'step (?P<done>\\d+)', stall: {for: 1m, action: kill}}\n")
    assert loaded.watch.stall is not None and loaded.watch.stall.action == "kill"


def test_a_secret_is_not_in_env_too(tmp_path: Path) -> None:
    faults = job_faults(tmp_path, SMALLEST + "env: {TOKEN: x}\nsecrets: [TOKEN]\n")
    assert faults == ["job.yaml:4: secrets[0]: TOKEN is in env too: keep it in one of them"]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["job.yaml: expected the keys of a job (name: …, command: …)"]),
        ("- a\n", ["job.yaml: expected the keys of a job (name: …, command: …)"]),
        (
            "node: sim\n",
            [
                "job.yaml:1: name: is missing; expected the job's name; its runs are called <name>-<suffix>",
                "job.yaml:1: command: is missing; expected the shell text to run; {name} stands for a parameter",
            ],
        ),
        ("name: Big_Name\ncommand: x\n", ["job.yaml:1: name: expected a name of a-z, 0-9 and - (at most 63), such as "
                                          "eagle3-extract, got 'Big_Name'"]),
        ("name: 5\ncommand: x\n", ["job.yaml:1: name: expected text, got 5"]),
    ],
)  # fmt: skip
def test_what_a_job_must_have(tmp_path: Path, text: str, faults: list[str]) -> None:
    assert job_faults(tmp_path, text) == faults


def test_all_faults_of_a_file_at_once_in_its_order(tmp_path: Path) -> None:
    faults = job_faults(
        tmp_path,
        "name: many\n"
        "gpu: 8\n"
        "command: train --bs {batchsize} &\n"
        "params: {batch_size: 8}\n"
        "timeout: soon\n"
        "timeout: 1h\n"
        "watch:\n"
        "  stall: {for: 5m, action: kill}\n"
        "  ready: '['\n"
        "on_oom: {reduce: batch_sise}\n",
    )
    assert [fault.split(";")[0].split(",")[0] for fault in faults] == [
        "job.yaml:2: gpu: unknown key",
        "job.yaml:3: command: the & at its end detaches the command",
        "job.yaml:5: timeout: expected a duration such as 30s",
        "job.yaml:6: timeout: stands twice: already in line 5",
        "job.yaml:9: watch.ready: expected a regular expression (Python's)",
        "job.yaml:10: on_oom.reduce: batch_sise is no parameter",
    ]


def test_a_misspelt_key_does_not_bring_forth_faults_of_what_it_would_have_said(tmp_path: Path) -> None:
    faults = job_faults(tmp_path, "name: a\ncommand: x {bs}\nparms: {bs: 1}\n")
    assert faults == ["job.yaml:3: parms: unknown key; did you mean params?"]


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_jobs_that_ship_load(path: Path) -> None:
    assert load_job(path).name == path.stem


def test_what_gives_way_at_load_alone(tmp_path: Path) -> None:
    text = """
name: serve
command: vllm serve --max-model-len {max_model_len}
params: {max_model_len: 131072}
type: service
on_oom: {at_load: max_model_len, floor: 4096, multiple_of: 16}
"""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    on_oom = load_job(path).on_oom
    assert on_oom is not None
    assert (on_oom.reduce, on_oom.at_load, on_oom.floor) == ([], ["max_model_len"], {"max_model_len": 4096})
