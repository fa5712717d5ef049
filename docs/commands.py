"""Writes docs/commands.md from the program itself: `.venv/bin/python docs/commands.py`.

What a command says with --help is not repeated by hand. What stands here beside it is what help has no room for: the
JSON that scripts read, and what is easily misunderstood.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from gpuctl.cli.program import COMMANDS, program

PAGE = Path(__file__).with_suffix(".md")
COLUMNS = 100

OPENING = """\
# Commands

This page is written by [commands.py](commands.py) from what the program says with `--help`. A test sees that it is
current.

**RUN** is a run's id (`eagle3-train-x7k2p9`), a unique prefix of one, or a job's name, which means its newest run.
`tail`, `events`, `wait`, `attach` and `explain` take the newest run launched from here where RUN is left out. `kill`,
`relaunch` and `rm` never guess: of several live runs they list all, and exit with 2; while a node is silent, they take
nothing but a whole id.

**NODE** is a name in the [inventory](inventory.md); where several may stand, `a,b` and `label=value` work too.

**Output.** Data goes to stdout. What is told about it goes to stderr. In a pipe, tables are plain columns, nothing is
cut off and there are no spinners. With `--json`, times are UTC (RFC 3339), sizes and durations are numbers in the unit
that the key ends in (`_bytes`, `_mib`, `_s`, `_w`), and what is not known is `null`, never 0.

**Exit codes**

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | what was asked about failed: the run failed, the GPUs are not empty |
| 2 | wrong usage, or a bad file; all faults of a file are named at once |
| 3 | no such run or node |
| 4 | a node can't be reached, or refused us; other nodes' results are printed first |
| 5 | refused for safety; the message says whether `--force` overrides it |
| 130 | interrupted |

**Ctrl-C** never ends a run. In `launch` it says whether the run was started. In `launch --follow`, `tail -f`,
`events -f` and `attach` it only stops looking.

Words of other tools (`logs`, `status`, `stop`, `cancel`, `submit`, `run`, `queue`) are answered with ours.
"""

ENDING = """\
## Completion

`gpuctl --install-completion` installs completion of commands, options, nodes and runs for your shell.

## Environment

| variable | meaning |
| --- | --- |
| `GPUCTL_INVENTORY` | the inventory file, where `--inventory` is not given |
| `GPUCTL_HOME` | where the controller keeps its database and caches, instead of the platform's user state folder |
| `GPUCTL_TRACEBACK` | set: where an internal error happened is printed in full |
| `NO_COLOR` | set: no colours |
"""

BESIDE: Mapping[str, str] = {
    "launch": """\
`--json` prints `{"run", "job", "node", "state", "attempt", "gpus", "params"}`. The run's id alone is on stdout
otherwise, so `run=$(gpuctl launch …)` works.

After `--` the words arrive on the node exactly as they stand; braces mean nothing there. `--reduce batch-size` finds
`--batch-size 64`, `--batch-size=64`, `-batch-size 64` and `batch_size=64`; if there is none, or more than one, nothing
is launched. `--dry-run` prints the job file that would do the same: a good start for one of your own.
""",
    "ps": """\
`--json` prints a list of `{"run", "job", "node", "state", "attempt", "params", "gpus", "created", "ended", "progress",
"incident", "why", "by", …}`. The rows come from the nodes, not from a database of the controller. The states are
explained in [architecture.md](architecture.md#states).
""",
    "tail": """\
The log is the job's stdout and stderr as one stream, with nothing added. On a terminal control characters are left out;
in a pipe every byte arrives.
""",
    "events": """\
`--json` prints the journal's own lines: `{"seq", "time", "mono_s", "type", "attempt", …}`. The types are listed in
[architecture.md](architecture.md#the-journal).
""",
    "wait": """\
`--json` prints a list of `{"run", "node", "state", "why"}`; `state` is `null` for a run that had not ended by
`--timeout`.
""",
    "kill": """\
`--json` prints a list of `{"run", "node", "state", "why", "gpus_empty", "after_s", "spared"}`. Another person's run is
ended only after a yes on the terminal, or with `--yes`.
""",
    "relaunch": """\
`--json` prints the run's row, as `ps --json` has it. It works for a run in any state: `blocked`, `failed` and
`succeeded` runs go on with their next attempt, and what `max_relaunches` allows is counted anew.
""",
    "attach": """\
The pane only shows the log. Neither Ctrl-C in it nor the end of the tmux server ends the run.
""",
    "explain": """\
`--json` prints one object for each run or file, in order: `{"file", "verdict", "class", "fatal", "phase", "gpu",
"requested_bytes", "total_bytes", "free_bytes", "relaunch_reduced", "evidence": [{"line", "text"}], "advice"}`. `class`
is `null` where nothing failed. Logs need not come from gpuctl.
""",
    "fit": """\
Each try is a run of the job with another value, alone on its GPUs: `ps`, `tail` and `explain` show it as any other. It
is ended by the node itself once the `--until` line is there, so choose one that comes after the peak of memory (a few
steps, not the first). `on_oom`, `resume` and `callback` are left out of it; what the job writes, it writes.

Where to try next is chosen by the memory that was seen in use (constant + linear + quadratic in the parameter) and by
halving what is left between good and bad. What the node's ledger knows of the same command, with all other values as
they are, on as many GPUs of the same model, is not tried again, unless `--fresh` says so.

`--json` prints `{"job", "node", "param", "value", "does_not_fit", "peak_mib", "total_mib", "margin_mib", "probes"}`; a
probe has `{"value", "run", "fitted", "class", "known", "peak_mib", "duration_s"}`. Exit code 1 if nothing fits, or if a
try failed for another reason than memory.
""",
    "history": """\
What fitted stands with the memory that its fullest GPU used; what failed, with its class. Only the parameters that
differ between a job's attempts are shown. It is read from the nodes'
[ledgers](architecture.md#the-ladder-and-the-ledger), which outlive the runs' folders. An attempt that began on GPUs
that others used, and a job without GPUs, are not in it.

`--json` prints `{"runs", "values", "gpu_hours", "gpu_hours_lost", "cost_lost"}`. A run has `{"run", "job", "node",
"state", "created", "ended", "why", "by", "removed", "attempts", "gpu_hours", "gpu_hours_lost", "cost", "cost_lost"}`,
an attempt `{"attempt", "params", "fitted", "class", "exit_code", "peak_mib", "total_mib", "loading_s", "duration_s",
"time", "model", "gpus", "gpu_hours"}`. `values` has, for each job template, GPU model and number of GPUs, what
`fitted` and what `failed` for want of memory. Hours lost are those of attempts that ended in a failure. Of a node
that can't be reached, the runs that were seen before are shown, without attempts.
""",
    "replay": """\
Nothing is done and nothing is written. The attempts are those that happened: where another decision would have been
taken, what would have followed it is not known. FOLDER is a copy of a run's folder, which is `.gpuctl/runs/RUN` on its
node (`gpuctl cp` copies it). `--policy` takes a job file, or a file with some of its keys: `type`, `timeout`, `on_oom`,
`on_failure`, `policy`, `watch`. The rest is as it was launched.

`--json` prints `{"run", "job", "missing", "attempts": [{"attempt", "params", "was", "now", "differs"}]}`. `was` and
`now` have `{"class", "action", "state", "params", "why"}`: `action` is `relaunch` (with `params`), `stop` (with
`state`), or `null` where it goes on. `was` has `asked` too: a person's kill or relaunch came first. `now` has `after_s`
(when it would have been ended while it lived), `evidence`, and `findings` (classes that would have been told).
`missing` names logs that are not there any more.
""",
    "gpus": """\
Memory is NVML's second version of the reading, which is 0 on an empty GPU. A dash is a reading that the GPU did not
give. RUNS are the leases; USERS are the processes that NVML names there.
""",
    "clean": """\
`--json` prints `{"node", "dry_run", "killed", "spared", "empty", "after_s", "failure", "why", "memory_mib"}`. What is
spared is named with the reason. What counts as proof that a process is ours is explained in
[architecture.md](architecture.md#proof-that-a-process-is-ours).
""",
    "nodes": """\
`--json` prints `{"inventory", "nodes": [{"node", …every key of the inventory…}]}`.
""",
    "doctor": """\
`--json` prints a list of `{"node", "checks": [{"verdict", "what", "cure"}], "facts"}`; `verdict` is `ok`, `warn` or
`fail`. The first entry, `here`, is the machine that you sit at.
""",
    "exec": """\
`--json` prints a list of `{"node", "exit_code", "stdout", "stderr"}`.
""",
    "cp": """\
`--json` prints a list of `{"source", "target", "files", "sent_bytes", "skipped"}`. Both sides may be nodes.
""",
    "rm": """\
`--json` prints, for each node, `{"node", "dry_run", "removed", "kept"}`. Outputs of the job in its `workdir` are never
touched.
""",
    "prune": """\
`--json` prints what `rm --json` prints, with unused bundles among the removed. A bundle that is needed again is sent
again. Where several machines share the state folder, all bundles stay as long as a run of another one lives. What can't
be deleted is listed under `kept` by its path, and is no error.
""",
    "trust": """\
`--json` prints `{"node", "host", "before", "file", "keys"}`. gpuctl never asks for a host key in passing: an unknown or
changed key is an error (exit 4) that names this command.
""",
    "schema": """\
An editor with a YAML language server completes and checks job files by it.
""",
    "demo": """\
It needs neither an inventory nor a GPU, and leaves nothing behind. `--json` prints the journal's lines.
""",
}


def page() -> str:
    """The whole page."""
    listing = "\n".join(
        f"- [`gpuctl {name}`](#gpuctl-{name}): {line[0].lower()}{line[1:]}" for name, line in COMMANDS.items()
    )
    sections = [_section(name) for name in COMMANDS]
    return "\n".join([OPENING, listing, "", *sections, ENDING])


def _section(name: str) -> str:
    command: click.Command = import_module(f"gpuctl.cli.{name}").command
    top = click.Context(program, info_name="gpuctl", **program.context_settings)
    context = click.Context(command, info_name=name, parent=top, terminal_width=COLUMNS, max_content_width=COLUMNS)
    return f"## gpuctl {name}\n\n```text\n{command.get_help(context)}\n```\n\n{BESIDE[name]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
