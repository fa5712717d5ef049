"""The same commands through a real sshd: trust, and following a run over connections that are cut."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.cli.trust import confirmed
from gpuctl.errors import RefusedForSafety
from gpuctl.transport.trust import HostKey, HostKeys
from tests.parts.command import Gpuctl
from tests.parts.sshd import Sshd, generate_key, known_hosts_line, running_sshd
from tests.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def remote(server: Sshd, gpuctl: Gpuctl) -> Gpuctl:
    """Node `far`, behind the server, with 4 simulated GPUs; its host key is not trusted yet."""
    gpuctl.inventory.write_text(
        "nodes:\n"
        f"  far: {{address: 127.0.0.1, port: {server.port}, identity_file: {server.key}, ssh_config: /dev/null,\n"
        f"        known_hosts: {gpuctl.folder}/known_hosts, state_dir: {gpuctl.folder}/state,\n"
        f"        lock_dir: {gpuctl.folder}/locks, simulate: {{gpus: 4}}, keepalive: 2}}\n"
    )
    return gpuctl


def test_an_unknown_host_key_is_refused_until_trusted(remote: Gpuctl) -> None:
    error = remote("ps", code=4).err
    assert "gpuctl trust far" in error
    assert "fingerprint" in remote("trust", "far", "--fingerprint", "SHA256:none", code=5).err
    shown = remote("trust", "far", "--json").json()
    assert shown["before"] == "unknown"
    assert all(key["fingerprint"].startswith("SHA256:") for key in shown["keys"])
    assert remote("ps", "--json").json() == []
    assert remote("trust", "far", "--json").json()["before"] == "known"


def test_other_keys_than_the_known_ones_need_a_yes_or_a_fingerprint(remote: Gpuctl, server: Sshd) -> None:
    generate_key(remote.folder / "former")
    known = remote.folder / "known_hosts"
    former = known_hosts_line(server.port, remote.folder / "former")
    known.write_text(former)
    refused = remote("trust", "far", code=5)
    assert "OTHER keys" in refused.err and "--fingerprint" in refused.err
    assert "SHA256:" in refused.out, "they are shown all the same"
    assert remote("trust", "far", "--json", code=5).out == ""
    assert known.read_text() == former
    assert "no fingerprint" in remote("trust", "far", "--fingerprint", "", code=2).err
    key = remote("trust", "far", "--yes", "--json").json()["keys"][0]
    for given in (key["fingerprint"], f"256 {key['fingerprint']} root@far (ED25519)\n"):
        known.write_text(former)
        assert remote("trust", "far", "--fingerprint", given, "--json").json()["keys"] == [key]
        assert former not in known.read_text()


def test_only_the_confirmed_keys_are_written() -> None:
    keys = [HostKey("ssh-ed25519", "SHA256:a/b", "h k1"), HostKey("ssh-rsa", "SHA256:c+d", "h k2")]
    shown = HostKeys("far", "h", keys, Path("known_hosts"), "unknown")
    assert confirmed(shown, ("256 SHA256:a/b root@far (ED25519)",)).keys == keys[:1]
    assert confirmed(shown, ("256 SHA256:a/b x (ED25519)\n3072 SHA256:c+d x (RSA)",)).keys == keys
    with pytest.raises(RefusedForSafety, match="SHA256:e"):
        confirmed(shown, ("SHA256:a/b", "SHA256:e"))


def test_tail_loses_and_repeats_nothing_when_connections_are_cut(remote: Gpuctl, server: Sshd) -> None:
    remote("trust", "far", "--yes")
    run = remote.launch("for i in $(seq 1 400); do echo line $i; sleep 0.02; done", node="far")
    following = remote.start("tail", run, "-f")
    waiting = remote.start("wait", run)
    for _cut in range(3):
        wait_until(lambda: len(server.connections()) >= 1, what="a connection to cut")
        server.cut()
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0, err
    assert out.decode() == "".join(f"line {number}\n" for number in range(1, 401))
    assert waiting.wait(timeout=30) == 0


LOSING = """\
#!/bin/sh
# Does as it is told, then cuts the connection before a verb named in `lost` has answered.
for verb; do :; done
case " $(cat {folder}/lost) " in *" $verb "*) ;; *) exec {python} "$@" ;; esac
test -e {folder}/deaf || {python} "$@" >/dev/null 2>&1
kill -9 $PPID
"""


@pytest.fixture
def losing(remote: Gpuctl) -> Gpuctl:
    """As `remote`, trusted; the answers to the verbs in the file `lost` never arrive."""
    remote("trust", "far", "--yes")
    remote("ps")  # so that the agent is there already
    python = remote.folder / "python3"
    python.write_text(LOSING.format(folder=remote.folder, python=sys.executable))
    python.chmod(0o755)
    remote.inventory.write_text(remote.inventory.read_text().replace("keepalive: 2", f"keepalive: 2, python: {python}"))
    return remote


def test_a_launch_whose_answer_never_comes_finds_out_what_became_of_it(losing: Gpuctl) -> None:
    (losing.folder / "lost").write_text("start")
    done = losing("launch", "--on", "far", "--gpus", "0", "--name", "job", "--", "echo", "here")
    run = done.out.strip()
    assert f"{run} was started, but its node did not say so" in done.err
    assert losing("wait", run).out.startswith(f"{run}: succeeded")
    assert [row["run"] for row in losing("ps", "--json").json()] == [run]


def test_a_launch_that_never_arrived_is_an_error(losing: Gpuctl) -> None:
    (losing.folder / "lost").write_text("start")
    (losing.folder / "deaf").write_text("")
    error = losing("launch", "--on", "far", "--gpus", "0", "--name", "job", "--", "echo", "here", code=4).err
    assert "may have been started" not in error
    assert losing("ps", "--json").json() == []


def test_a_launch_that_nobody_can_tell_of_names_its_run(losing: Gpuctl) -> None:
    (losing.folder / "lost").write_text("start ps")
    error = losing("launch", "--on", "far", "--gpus", "0", "--name", "job", "--", "echo", "here", code=4).err
    told = re.search(r"(job-\w+) may have been started", error)
    assert told is not None, error
    (losing.folder / "lost").write_text("")
    (row,) = losing("ps", told[1], "--json").json()
    assert row["run"] == told[1]
    assert losing("wait").out.startswith(told[1])  # the newest launched from here


def test_the_run_goes_on_without_server_or_controller(remote: Gpuctl, server: Sshd) -> None:
    remote("trust", "far", "--yes")
    run = remote.launch("echo begun; sleep 1; echo over", node="far", gpus=1)
    server.stop()
    assert "far" in remote("tail", run, code=4).err
    journal = remote.folder / "state" / "runs" / run / "journal.jsonl"
    wait_until(lambda: "run_finished" in journal.read_text(), what="the run's end")
    assert '"succeeded"' in journal.read_text()
