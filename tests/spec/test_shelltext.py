"""CONTRACT, "Shell": a command that detaches itself is refused, and so is one that chooses its GPUs; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.spec.shelltext import in_background, simple_commands
from tests.spec.files import job, job_faults


def text_of(command: str) -> str:
    return "name: a\ncommand: |\n" + "".join(f"  {line}\n" for line in command.splitlines())


DETACHES = [
    "python train.py &",
    "python train.py > train.log 2>&1 &",
    "python train.py &  # in the background",
    "python train.py &\n",
    "cd x && python train.py &",
    "(python train.py &)",
    "{ python train.py & }",
    "for i in 0 1; do python train.py $i & done",
    "nohup python train.py",
    "nohup python train.py > train.log 2>&1 &",
    "cd x && nohup python train.py",
    "FOO=1 nohup python train.py",
    "exec setsid python train.py",
    "/usr/bin/setsid -f python train.py",
    "env FOO=1 setsid python train.py",
    "screen -dmS train python train.py",
    "tmux new -d -s train 'python train.py'",
    "tmux -L mine new-session -d -s train 'python train.py'",
    "bash -c 'nohup python train.py'",
    "python train.py & disown",
]


@pytest.mark.parametrize("command", DETACHES)
def test_a_command_that_detaches_itself_is_refused(tmp_path: Path, command: str) -> None:
    (fault,) = job_faults(tmp_path, text_of(command))
    assert fault.startswith("job.yaml:2: command: ")
    assert "which is what gpuctl does itself: leave it away" in fault


STAYS = [
    "python train.py",
    "python train.py 2>&1 | tee train.log",
    "python train.py &> train.log",
    "python train.py >& train.log",
    "python server.py & python client.py",
    "python a.py & python b.py & wait",
    "python train.py && echo done",
    "python train.py --name 'a &'",
    'python train.py --query "a=1&b=2&"',
    "python train.py --tool nohup",
    "python nohup.py",
    "echo tmux new",
    "tmux has-session -t x || true; python train.py",
    "python train.py \\&",
    "# nohup x &\npython train.py",
    "cat > run.sh <<'EOF'\nnohup x &\nEOF\npython run.py",
    "python train.py $((1 & 3))",
    "python train.py # &",
]


@pytest.mark.parametrize("command", STAYS)
def test_a_command_that_stays_is_not(tmp_path: Path, command: str) -> None:
    assert job(tmp_path, text_of(command)).command.strip() == command


CHOOSES = [
    "CUDA_VISIBLE_DEVICES=2,3 python train.py",
    "export CUDA_VISIBLE_DEVICES=2; python train.py",
    "cd x && CUDA_VISIBLE_DEVICES=2 python train.py",
    "env CUDA_VISIBLE_DEVICES=2 python train.py",
    "FOO=1 CUDA_VISIBLE_DEVICES= python train.py",
    "if true; then CUDA_VISIBLE_DEVICES=1 python train.py; fi",
    "sh -c 'CUDA_VISIBLE_DEVICES=1 python train.py'",
    "declare -x CUDA_VISIBLE_DEVICES=1\npython train.py",
    "(CUDA_VISIBLE_DEVICES=1 python train.py)",
]


@pytest.mark.parametrize("command", CHOOSES)
def test_a_command_that_sets_cuda_visible_devices_is_refused(tmp_path: Path, command: str) -> None:
    (fault,) = job_faults(tmp_path, text_of(command))
    assert fault.startswith("job.yaml:2: command: sets CUDA_VISIBLE_DEVICES: say which by gpus: [2, 3]")


@pytest.mark.parametrize(
    "command",
    [
        'echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"',
        "echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES",
        "python train.py --devices $CUDA_VISIBLE_DEVICES",
        "MY_CUDA_VISIBLE_DEVICES=1 python train.py",
        'test -n "$CUDA_VISIBLE_DEVICES" && python train.py',
    ],
)
def test_a_command_that_reads_it_is_not(tmp_path: Path, command: str) -> None:
    assert job(tmp_path, text_of(command))


def test_setup_may_start_what_the_command_needs(tmp_path: Path) -> None:
    assert job(tmp_path, "name: a\nsetup: redis-server &\ncommand: python train.py\n")


def test_simple_commands_and_what_ends_them() -> None:
    found = simple_commands("A=1 x 'y z' > out 2>&1 && \\\n  w -v | tee log &\nfoo")
    assert [(command.name, command.arguments, command.end) for command in found] == [
        ("x", ("y z",), "&&"),
        ("w", ("-v",), "|"),
        ("tee", ("log",), "&"),
        ("foo", (), ""),
    ]


@pytest.mark.parametrize(
    "text", ["'", '"', "`", "$(", "$((", "${", "<<", "<<EOF", "\\", "((((", "&", "", ";;", "a <<'X"]
)
def test_unfinished_text_is_read_as_far_as_it_goes(text: str) -> None:
    simple_commands(text)
    in_background(text)


def test_long_text_is_read_in_a_moment() -> None:
    simple_commands("'" * 20_000)
    simple_commands("$((" * 5_000)
    simple_commands("a" * 200_000 + " &" * 20_000)


RESUME = "resume: {when: '*.pt', append: '--resume {latest}'}\n"
TAKES = [
    "python train.py",
    "A=1 exec torchrun --n 4 \\\n  train.py 'a | b'",
    "python train.py > log 2>&1",
    "docker exec box python x.py",
    "python train.py 2>&1 <in",
]
TAKES_NOT = [
    "python train.py | tee log",
    "python a.py; python b.py",
    "cd x && python a.py",
    "python a.py\npython b.py",
    "(python a.py)",
    "{ python a.py\n}",
    "for i in 1 2; do python a.py; done",
    "if x; then python a.py; fi",
    "bash -lc 'python a.py'",
    "python a.py # --resume",
    "python a.py <<EOF\nx\nEOF",
    "time python a.py | cat",
    "! python a.py",
]


@pytest.mark.parametrize("command", TAKES)
def test_what_resume_may_be_appended_to(tmp_path: Path, command: str) -> None:
    assert job(tmp_path, text_of(command) + RESUME)


@pytest.mark.parametrize("command", TAKES_NOT)
def test_what_would_give_it_to_another_command_must_say_where_it_belongs(tmp_path: Path, command: str) -> None:
    (fault,) = job_faults(tmp_path, text_of(command) + RESUME)
    assert fault.startswith("job.yaml:2: command: ") and "{resume}" in fault
    assert job(tmp_path, text_of(command))
    assert job(tmp_path, text_of(command.replace(".py", ".py {resume}", 1).replace("if x", "if x {resume}")) + RESUME)


def test_where_nothing_is_resumed_there_is_no_such_name(tmp_path: Path) -> None:
    (fault,) = job_faults(tmp_path, text_of("python train.py {resume}"))
    assert "{resume} is not a known name" in fault
