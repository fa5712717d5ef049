"""What is shipped runs on every Python from 3.8 on: the whole loop, isolated and without site-packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuctl.wire.runspec import OnOom
from tests.node.test_life import TENSOR
from tests.parts.node import node
from tests.parts.pythons import pythons

VERSIONS = [f"3.{minor}" for minor in range(8, 16)]


@pytest.mark.parametrize("python", pythons(*VERSIONS))
def test_the_loop_on_every_python(tmp_path: Path, python: str) -> None:
    with node(tmp_path, python=python) as old:
        command = f'{sys.executable} -c "{TENSOR}" {{mib}}'
        on_oom = OnOom(reduce=["mib"], factor=0.25, max_relaunches=6)
        old.start(old.job(command, gpus=1, params={"mib": 300000}, on_oom=on_oom))
        assert old.wait_over().state == "succeeded", (old.errors(), old.events())
        old.start(old.job("sleep 600", "killed-1", gpus=2))
        old.wait_state("loading", run="killed-1")
        old.ask("killed-1", "kill")
        assert {row["state"] for row in old.ps().values()} == {"succeeded", "killed"}
        for verb in ("probe", "gpus", "clean"):
            assert not old.call(verb, dry_run=True)[-1].get("error"), verb
        assert old.errors() == ""


def test_what_is_shipped_needs_no_site_packages(tmp_path: Path) -> None:
    with node(tmp_path, flags=("-I", "-S")) as bare:
        assert bare.start(bare.job("true", gpus=1))["run"]["run"] == "job-1"
        assert bare.wait_over().state == "succeeded"
        assert bare.call("gpus")[-1]["devices"]
