"""What a run's journal says of its attempts: the policy's memory, rebuilt each time a supervisor starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set

from gpuctl.node.journal import Journal, read
from gpuctl.node.processes import ProcessId
from gpuctl.wire.incidents import AttemptRecord, Exit, Incident
from gpuctl.wire.life import Life, advance


class History:
    """What events tell of a run's attempts."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.life = Life()
        self.attempts: List[AttemptRecord] = []
        self.answered: Set[str] = set()
        self.xids: Set[str] = set()  # of the last attempt, as its events word them
        self.findings: List[Incident] = []  # of the last attempt: what was told of it and still holds
        self.keepers: List[ProcessId] = []  # of all attempts: an old one lives on as long as it has children
        self.started: Optional[Mapping[str, Any]] = None  # the last attempt_started
        self.exited: Optional[Mapping[str, Any]] = None  # the attempt_exited of that attempt
        self.asked: Optional[Mapping[str, Any]] = None  # an accepted request that is not carried out yet
        self.ready = False  # that attempt
        self.loaded_mib: Optional[int] = None  # when that attempt was ready
        self.relaunch: Optional[Mapping[str, Any]] = None  # a relaunching event that no attempt followed yet
        self.begun: Dict[str, Any] = {}  # what the last attempt was begun with: params and added environment
        self.called_back = False  # since the last ending
        for event in events:
            self._learn(event)

    @property
    def number(self) -> int:
        """Of the last attempt that was started; 0 before the first."""
        return self.attempts[-1].attempt if self.attempts else 0

    def _learn(self, event: Mapping[str, Any]) -> None:
        self.life = advance(self.life, event)
        learn = getattr(self, f"_on_{event['type']}", None)
        if learn is not None:
            learn(event)

    def _on_attempt_started(self, event: Mapping[str, Any]) -> None:
        before = self.relaunch or {}
        self.begun = {"params": dict(event.get("params", {})), "env": dict(before.get("env") or {})}
        self.started, self.exited, self.relaunch = event, None, None
        self.ready, self.loaded_mib = False, None
        self.xids.clear()
        self.findings.clear()
        if event.get("keeper"):
            self.keepers.append(ProcessId(event["keeper"], event["keeper_start"]))
        self.attempts.append(
            AttemptRecord(
                attempt=event["attempt"],
                params=dict(event.get("params", {})),
                gpus_were_empty=event.get("gpus_were_empty", True),
                requested=event.get("requested", False),
                resumed_from=event.get("resumed_from"),
                resumed_written=event.get("resumed_written"),
            )
        )

    def _on_ready(self, event: Mapping[str, Any]) -> None:
        self._loaded(event)
        self.ready, self.loaded_mib = True, event.get("loaded_mib")

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        self._loaded(event)
        self._amend(progressed=True)

    def _loaded(self, event: Mapping[str, Any]) -> None:
        if self.attempts and self.attempts[-1].loading_s is None and self.started is not None:
            self._amend(loading_s=round(event["mono_s"] - self.started["mono_s"], 3))

    def _on_incident(self, event: Mapping[str, Any]) -> None:
        incident = Incident.from_event(event)
        self.findings.append(incident)
        if incident.fatal:
            self._amend(incident=incident)
            if event.get("strangers"):
                self._amend(gpus_were_empty=False)

    def _on_recovered(self, event: Mapping[str, Any]) -> None:
        self.findings = [finding for finding in self.findings if finding.cls != event["class"]]

    def _on_xid(self, event: Mapping[str, Any]) -> None:
        self.xids.add(event["text"])

    def _on_attempt_exited(self, event: Mapping[str, Any]) -> None:
        self.exited = event
        self._amend(duration_s=event.get("duration_s"))

    def _on_relaunching(self, event: Mapping[str, Any]) -> None:
        self.relaunch, self.asked = event, None

    def _on_callback(self, event: Mapping[str, Any]) -> None:
        self.called_back = True

    def _on_run_finished(self, event: Mapping[str, Any]) -> None:
        self.called_back = False
        self.asked = self.relaunch = None

    def _on_request(self, event: Mapping[str, Any]) -> None:
        self.answered.add(event["request"])
        if event.get("accepted"):
            self.asked = event

    def _amend(self, **changes: Any) -> None:
        if self.attempts:
            self.attempts[-1] = replace(self.attempts[-1], **changes)


def exit_of(event: Mapping[str, Any]) -> Exit:
    """What an `attempt_exited` event tells."""
    return Exit(
        event.get("exit_code"), event.get("signal"), event.get("duration_s"),
        left_behind=bool(event.get("left_behind")), never_begun=bool(event.get("never_begun")),
    )  # fmt: skip


class Record(History):
    """The journal with what was learned from it. All that the supervisor writes goes through `write`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.journal = Journal(path)
        for event in read(path):
            self._learn(event)

    def write(self, type: str, *, sync: bool = False, attempt: Optional[int] = None, **fields: Any) -> Dict[str, Any]:
        event = self.journal.append(type, attempt or self.number or None, sync=sync, **fields)
        self._learn(event)
        return event
