from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime

from gpuctl.node.clock import boottime, now
from gpuctl.node.machine import Machine, identity, process_start

HERE = Machine("gpu1", "boot-1", 100)


def test_identity_is_stable_and_survives_json() -> None:
    here = identity()
    assert here == identity() == Machine.from_json(here.to_json())
    assert here.host and here.boot_id and here.init_start is not None


def test_a_reboot_and_a_restarted_container_are_another_life() -> None:
    assert HERE.same_life(HERE)
    assert not HERE.same_life(Machine("gpu1", "boot-2", 100))
    assert not HERE.same_life(Machine("gpu1", "boot-1", 5000)), "a container keeps its host's boot id"
    assert HERE.same_life(Machine("gpu1", "boot-1", None)), "what hidepid hides decides nothing"


def test_another_host_name_is_elsewhere_even_with_the_same_boot() -> None:
    assert Machine("gpu2", "boot-1", 100).elsewhere(HERE)
    assert not Machine("gpu1", "boot-2", 7).elsewhere(HERE)


def test_a_processs_start_whatever_it_is_called() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm','w').write(') R 1 (x'); input()"], stdin=subprocess.PIPE
    )
    try:
        start, own = process_start(child.pid), process_start(os.getpid())
        assert start is not None and own is not None and start >= own
    finally:
        child.communicate(b"\n")
    assert process_start(child.pid) is None


def test_clocks() -> None:
    assert datetime.strptime(now(), "%Y-%m-%dT%H:%M:%S.%fZ")
    assert len(now()) == len("2026-01-01T00:00:00.000Z")
    assert 0 < boottime() <= boottime()
