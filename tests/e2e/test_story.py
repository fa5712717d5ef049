"""The main job through a real sshd, while what watches it is killed: it ends the same, and its log is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import REPOSITORY, Follower, Site
from tests.parts.leftovers import end_all
from tests.parts.sshd import Sshd

EXTRACT = str(REPOSITORY / "jobs/eagle3-extract-sim.yaml")
SPEED = "1000"

Blow = Callable[["Story"], None]


class Story:
    """A launch that is followed, and what follows it: the log and the events."""

    def __init__(self, site: Site, stack: ExitStack, launcher: str) -> None:
        self.site = site
        job = Path(EXTRACT).read_text() + f"launcher: {launcher}\n"
        site.job(job, "extract.yaml")
        launch = ["launch", "extract.yaml", "--on", "gpu1", "--set", f"speed={SPEED}", "--follow"]
        self.controller: Follower = stack.enter_context(site.following(*launch))
        self.controller.await_out(b"eagle3-extract-sim-")
        self.run = self.controller.out.split(b"\n")[0].decode()
        self.tail: Follower = stack.enter_context(site.following("tail", self.run, "-f"))
        self.events: Follower = stack.enter_context(site.following("events", self.run, "-f", "--json"))

    def cut(self) -> None:
        assert self.site.server is not None
        self.site.server.cut()

    def kill_controller(self) -> None:
        self.controller.kill_9()

    def kill_supervisor(self) -> None:
        self.site.kill_9("supervise", self.run)

    def kill_keeper(self) -> None:
        self.site.kill_9("keep", "")

    def attempts(self) -> list[int]:
        return [event["params"]["batch_size"] for event in self.site.journal(self.run, "attempt_started")]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, sshd: Sshd) -> list[int]:
    """The batch sizes that the job goes through where nobody disturbs it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    try:
        site = Site(folder, sshd)
        done = site("launch", EXTRACT, "--on", "gpu1", "--set", f"speed={SPEED}", "--follow")
        run = done.out.splitlines()[0]
        story = [event["params"]["batch_size"] for event in site.journal(run, "attempt_started")]
    finally:
        end_all(folder)
    assert story[0] == 2000
    assert story[-1] <= 31, "what fits beside the model"
    return story


BLOWS: dict[str, tuple[str, list[tuple[int, Blow]]]] = {
    "connection": ("nohup", [(1, Story.cut), (2, Story.cut)]),
    "controller": ("tmux", [(1, Story.kill_controller)]),
    "supervisor": ("nohup", [(1, Story.kill_supervisor), (2, Story.kill_supervisor)]),
    "all": (
        "tmux",
        [(1, Story.cut), (1, Story.kill_controller), (1, Story.kill_supervisor), (2, Story.kill_supervisor),
         (2, Story.cut), (3, Story.kill_keeper)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BLOWS)
def test_it_ends_the_same_whatever_dies(what: str, far: Site, undisturbed: list[int]) -> None:
    launcher, blows = BLOWS[what]
    with ExitStack() as stack:
        story = Story(far, stack, launcher)
        for attempt, blow in blows:
            far.await_event(story.run, "attempt_started", attempt=attempt)
            far.await_log(story.run, b"\n", attempt=attempt)
            blow(story)
        assert far.await_end(story.run)["state"] == "succeeded"
        assert story.attempts() == undisturbed
        story.tail.ended()
        story.events.ended()
        if story.controller.process.returncode is None:
            story.controller.ended()
    whole(far, story)


def whole(site: Site, story: Story) -> None:
    """Nothing is lost, nothing repeated, and all of it can be read afterwards."""
    journal = site.journal(story.run)
    assert [event["seq"] for event in journal] == list(range(1, len(journal) + 1))
    assert [json.loads(line) for line in story.events.out.splitlines()] == journal
    assert story.tail.out == site.logs(story.run)
    last = journal[-1]["attempt"]
    for attempt in range(1, last + 1):
        shown = site("tail", story.run, "--attempt", str(attempt)).out.encode()
        assert shown == site.log(story.run, attempt)
    assert site("tail").out.encode() == site.log(story.run, last), "the newest launched from here"
    assert site("wait", story.run, "--json").json()[0]["state"] == "succeeded"
    assert site.used_mib("gpu1") == 0
    _in_order(journal)


def _in_order(journal: list[dict[str, Any]]) -> None:
    """Every attempt but the last was told out of memory, cleaned up, and verified empty before the next began."""
    types = [event["type"] for event in journal if event["type"] != "supervisor_started"]
    assert types.count("relaunching") == types.count("attempt_started") - 1
    for event in journal:
        if event["type"] == "relaunching":
            before = {other["type"]: other for other in journal if other.get("attempt") == event["attempt"]}
            assert before["incident"]["class"] == "gpu_oom"
            assert before["incident"]["requested_bytes"] > before["incident"]["free_bytes"] > 0
            assert before["attempt_exited"]["exit_code"] == 1
            assert before["incident"]["seq"] < before["gpus_empty"]["seq"] < event["seq"]
