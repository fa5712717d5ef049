"""Requests: files written aside and renamed into `runs/<run>/requests/`, answered by the supervisor with an event."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional

from gpuctl.node.folders import RunFolder, write_json
from gpuctl.node.journal import Reader
from gpuctl.node.keeper import start_supervisor
from gpuctl.node.link import Link
from gpuctl.node.processes import scan
from gpuctl.node.refusal import BAD_USAGE, FAILED, UNFIT, UNSAFE, Refusal
from gpuctl.node.waiter import Waiter
from gpuctl.wire.life import Life
from gpuctl.wire.requests import Request

ANSWER_DEADLINE_S = 30.0
STOPPED_S = 2.0
"""After so long without an answer it is looked whether there can be one."""
LOOK_S = 0.5
KINDS = ("kill", "relaunch")


class Inbox:
    """The supervisor's side."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def waiting(self) -> List[Request]:
        """The requests that lie there, oldest first. A file that is no request is removed: nobody can be answered."""
        found = []
        for name in os.listdir(self.run.requests):
            path = os.path.join(self.run.requests, name)
            if not name.endswith(".json"):
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    request = Request.from_json(json.load(file))
                found.append((os.stat(path).st_mtime_ns, request.id, request))
            except (ValueError, TypeError):
                self._remove(path)
            except OSError:
                continue  # not now: it stays for the next look
        return [request for _, _, request in sorted(found, key=lambda item: item[:2])]

    def done(self, request: Request) -> None:
        self._remove(os.path.join(self.run.requests, f"{request.id}.json"))

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def ask(run: RunFolder, request: Request, secrets: Optional[Dict[str, str]], link: Link) -> Dict[str, Any]:
    """The caller's side: leaves the request, sees that a supervisor lives, and answers the event that answers it.
    Raises Refusal where that says no, or says nothing."""
    if request.kind not in KINDS:
        raise Refusal(BAD_USAGE, f"no such request: {request.kind}", f"there are {', '.join(KINDS)}")
    reader = Reader(run.journal)
    if not request.id.replace("-", "").isalnum():
        raise Refusal(BAD_USAGE, "a request's id is letters, digits and dashes", "")
    _leave(run, request)
    waiter = Waiter()
    waiter.watch(run.journal)
    asked = time.monotonic()
    try:
        while True:
            for event in reader.read():
                if event["type"] == "request" and event.get("request") == request.id:
                    if not event.get("accepted"):
                        raise Refusal(event.get("code", FAILED), event.get("why", "refused"), event.get("hint", ""))
                    return event
            if not run.supervised():
                start_supervisor(run.path, secrets)
            _expect_answer(run, time.monotonic() - asked)
            link.wait(waiter, LOOK_S)
    finally:
        waiter.close()


def _leave(run: RunFolder, request: Request) -> None:
    """The request's file. On a full disk the run's reserve makes room for it: that is when people want to kill."""
    path = os.path.join(run.requests, f"{request.id}.json")
    try:
        write_json(path, request.to_json())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(run.reserve)
        write_json(path, request.to_json())


def carried_out(run: RunFolder, request: Request, after: int, link: Link) -> Iterator[Mapping[str, Any]]:
    """The journal's events after the answer, until what was asked for is done: the run's end; or the next attempt."""
    reader = Reader(run.journal)
    waiter = Waiter()
    waiter.watch(run.journal)
    try:
        while True:
            for event in reader.read():
                if event["seq"] <= after:
                    continue
                yield event
                if event["type"] == "run_finished" or (
                    request.kind == "relaunch" and event["type"] == "attempt_started"
                ):
                    return
            if not run.supervised() and start_supervisor(run.path, None) == "ended":
                yield from (event for event in reader.read() if event["seq"] > after)
                return
            link.wait(waiter, LOOK_S)
    finally:
        waiter.close()


def _expect_answer(run: RunFolder, waited_s: float) -> None:
    """Raises Refusal where no answer can come, as far as one can see, or none came for long."""
    if waited_s < STOPPED_S:
        return
    found = next((process for process in scan() if process.argv[-2:] == ("supervise", run.path)), None)
    stays = "the request stays there, and will be carried out"
    if found is not None and found.state in "Tt":
        raise Refusal(
            UNFIT,
            f"the supervisor of {run.run} (pid {found.id.pid}) is stopped (SIGSTOP, a debugger): it answers nobody",
            f"let it go on: `kill -CONT {found.id.pid}` there; {stays}",
        )
    if waited_s < ANSWER_DEADLINE_S:
        return
    silent = f"did not answer within {ANSWER_DEADLINE_S:.0f} s"
    if found is None:
        raise Refusal(
            UNFIT,
            f"the supervisor of {run.run} {silent}",
            f"look at {run.path}/supervisor.err and at the machine's disk; {stays}",
        )
    if found.state == "D":
        raise Refusal(
            UNFIT,
            f"the supervisor of {run.run} (pid {found.id.pid}) {silent}: it waits for a disk or a driver",
            f"look at that machine's disks and at `dmesg`; {stays} once it goes on",
        )
    raise Refusal(
        UNFIT,
        f"the supervisor of {run.run} (pid {found.id.pid}) {silent}",
        f"`kill -9 {found.id.pid}` there ends it and not the job: the next gpuctl starts another; {stays} by that",
    )


def refusal_of(life: Life, kind: str) -> Optional[Dict[str, Any]]:
    """Why a request can't be carried out in this state of the run; None where it can."""
    if kind == "kill" and life.over:
        return {"code": FAILED, "why": f"it has already ended: {life.state}", "hint": ""}
    if kind not in KINDS:
        return {"code": UNSAFE, "why": f"no such request: {kind}", "hint": ""}
    return None
