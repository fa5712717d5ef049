"""The verbs of the bundle: what the controller calls, and what the program calls of itself.

A verb's request is one JSON line on stdin, its answers are JSON lines on stdout. The table is the whole surface; each
entry imports what it needs, so that a short question has a short answer.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Tuple

from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.link import Link, LinkClosed
from gpuctl.node.refusal import BAD_USAGE, FAILED, Refusal
from gpuctl.wire import VERSION
from gpuctl.wire.nodespec import NodeSpec

Request = Mapping[str, Any]
Verb = Callable[[NodeSpec, Request, Link], None]


def run(argv: List[str]) -> int:
    """`argv` is the archive, the verb, its words. Answers the exit code."""
    if len(argv) < 2:
        sys.stderr.write("gpuctl's agent: called without a verb\n")
        return BAD_USAGE
    verb, words = argv[1], argv[2:]
    if verb in INTERNAL:
        return INTERNAL[verb](words)
    if verb not in VERBS:
        return _answer_error(Refusal(BAD_USAGE, f"the agent has no verb {verb!r}", "controller and node differ"))
    try:
        request, node = _read_request()
        link = Link(request.get("keepalive"))
        VERBS[verb](_resolved(node), request, link)
        link.end()
    except LinkClosed:
        return 0
    except Refusal as refusal:
        return _answer_error(refusal)
    except OSError as error:
        return _answer_error(Refusal(FAILED, f"{verb} failed on the node: {error}", "`gpuctl doctor` says more"))
    except Exception as error:  # noqa: BLE001 - the last resort: a person gets a message, not a traceback
        return _answer_error(_bug(verb, error))
    return 0


def _read_request() -> Tuple[Request, NodeSpec]:
    try:
        request = json.loads(_first_line())
        node = NodeSpec.from_json(request["node"])
        newer = request.get("version", VERSION) > VERSION
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal(BAD_USAGE, f"the agent did not understand a request: {error!r}", "") from None
    if newer:
        raise Refusal(BAD_USAGE, "the controller speaks a newer version than its own agent", "send it again")
    return request, node


def _bug(verb: str, error: Exception) -> Refusal:
    """A fault of ours, with the place where it happened."""
    import traceback  # here: a verb that works does not need it

    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return Refusal(FAILED, f"{verb} failed on the node: {error!r} ({where})", "a fault of gpuctl: please report it")


def _first_line() -> str:
    """Byte by byte from the descriptor: what follows the line belongs to the verb."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            break
        line += piece
    return line.decode("utf-8")


def _resolved(node: NodeSpec) -> NodeSpec:
    if node.simulate is None:
        return node
    from gpuctl.simulation.devices import resolved

    StateFolder(node).ensure()
    return resolved(node)


def _answer_error(refusal: Refusal) -> int:
    os.set_blocking(1, True)
    try:
        os.write(1, json.dumps(refusal.to_json()).encode("ascii") + b"\n")
    except BrokenPipeError:
        return refusal.code
    return refusal.code


def _revive(folder: RunFolder) -> None:
    """A supervisor for a live run that has none."""
    from gpuctl.node.keeper import start_supervisor

    start_supervisor(folder.path, None)


def _start(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.start import start

    link.send(start(node, request))


def _ps(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.queries import Queries

    link.send(Queries(node, _revive).ps(all=bool(request.get("all")), runs=request.get("runs")))


def _events(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.queries import Queries

    after, follow = int(request.get("after") or 0), bool(request.get("follow"))
    Queries(node, _revive).events(link, request["run"], after=after, follow=follow)


def _log(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.queries import Queries

    names = ("attempt", "file", "offset", "lines")
    wanted: Dict[str, Any] = {name: request.get(name) for name in names}
    Queries(node, _revive).log(link, request["run"], follow=bool(request.get("follow")), **wanted)


def _stream(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node import program
    from gpuctl.node.queries import Queries
    from gpuctl.node.telemetry import Telemetry

    queries = Queries(node, _revive)
    every_s = float(request.get("every_s") or 1.0)
    if not request.get("samples"):
        queries.stream(link, runs=request.get("runs"), after=request.get("after"), every_s=every_s)
        return
    with Telemetry(node, program.argv("sample")) as telemetry:
        sample = functools.partial(link.during, telemetry.sample)
        queries.stream(link, runs=request.get("runs"), after=request.get("after"), sample=sample, every_s=every_s)


def _request(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.requests import ask, carried_out
    from gpuctl.wire.requests import Request as Asked

    folder = StateFolder(node).existing(request["run"])
    asked = Asked.from_json(request["request"])
    answer = ask(folder, asked, request.get("secrets"), link)
    link.send(answer)
    if request.get("wait"):
        for event in carried_out(folder, asked, answer["seq"], link):
            link.send(dict(event))


def _gpus(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.gpus import answer_gpus

    answer_gpus(node, link, follow=bool(request.get("follow")), every_s=float(request.get("every_s") or 1.0))


def _clean(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.clean import clean
    from gpuctl.node.processes import ProcessId

    agreed = request.get("only")
    only = None if agreed is None else {ProcessId(pid, start) for pid, start in agreed}
    dry_run, force = bool(request.get("dry_run")), bool(request.get("force"))
    report = clean(node, gpus=request.get("gpus"), dry_run=dry_run, force=force, only=only)
    link.send({"clean": report.to_json()})


def _probe(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.probe import facts

    link.send({"facts": facts(node)})


def _remove(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.remove import remove

    wanted = {name: request.get(name) for name in ("runs", "older_than_s", "keep")}
    link.send(remove(node, archives=bool(request.get("archives")), dry_run=bool(request.get("dry_run")), **wanted))


def _ledger(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.ledger import answer
    from gpuctl.wire.runspec import RunSpec

    spec = request.get("spec")
    link.send(answer(node, request.get("job"), RunSpec.from_json(spec) if spec else None))


def _pack(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.files import pack

    pack(node, request, link)


def _unpack(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.files import unpack

    unpack(node, request, link)


def _replay(node: NodeSpec, request: Request, link: Link) -> None:
    from gpuctl.node.replay import answer

    link.send(answer(node, request))


VERBS: Dict[str, Verb] = {
    "start": _start,
    "ps": _ps,
    "events": _events,
    "log": _log,
    "stream": _stream,
    "request": _request,
    "gpus": _gpus,
    "clean": _clean,
    "probe": _probe,
    "remove": _remove,
    "ledger": _ledger,
    "pack": _pack,
    "unpack": _unpack,
    "replay": _replay,
}


def _supervise(words: List[str]) -> int:
    from gpuctl.node.supervise import main

    return main(words[0])


def _keep(words: List[str]) -> int:
    from gpuctl.node.keeper import main

    return main()


def _sample(words: List[str]) -> int:
    from gpuctl.node.sampler import main

    return main()


def _view(words: List[str]) -> int:
    from gpuctl.node.view import main

    return main(words[0])


INTERNAL: Dict[str, Callable[[List[str]], int]] = {
    "supervise": _supervise,
    "keep": _keep,
    "sample": _sample,
    "view": _view,
}
"""What the program calls of itself."""
