"""Verb `start`: from a run spec to a supervised run. Returns once the journal's first record is on the disk.

The run's id comes from the caller, so a repeated request is the same run. What can be refused is refused here, before
anything exists: a folder that is missing, a command that is not found, GPUs that are taken.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, List, Mapping, Optional, Tuple

from gpuctl.node import ledger, program, shell
from gpuctl.node.allocation import Busy, choose, eligible, wanted
from gpuctl.node.checkpoints import checkpoints
from gpuctl.node.folders import RunFolder, StateFolder, try_lock, write_json
from gpuctl.node.journal import read
from gpuctl.node.keeper import start_supervisor
from gpuctl.node.leases import Leases
from gpuctl.node.machine import identity
from gpuctl.node.outputs import check as check_outputs
from gpuctl.node.placement import LAUNCH_FILE, Launch, life_of
from gpuctl.node.refusal import BAD_USAGE, FAILED, UNFIT, UNSAFE, Refusal
from gpuctl.node.resuming import check as check_resume
from gpuctl.node.telemetry import Telemetry
from gpuctl.node.terminal import open_view
from gpuctl.watchdog.ledger import outlook
from gpuctl.wire import braces
from gpuctl.wire.life import row
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.samples import DeviceSample


def start(node: NodeSpec, request: Mapping[str, Any]) -> Dict[str, Any]:
    """`{"run": RunRow, "warnings": [...]}`. Raises Refusal."""
    spec = RunSpec.from_json(request["spec"])
    state = StateFolder(node)
    folder = state.run(spec.run)
    warnings: List[str] = []
    if not os.path.isdir(folder.path):
        state.ensure()
        _check(spec)
        known = shell.values(spec, spec.params, 1, 0, 0)
        check_outputs(spec, known, state)
        check_resume(spec, known, state)
        warnings += _nothing_to_resume(spec)
        warnings += _lingering()
        folder = _create(spec, node, state, warnings, force=bool(request.get("force")))
    _supervise(folder, dict(request.get("secrets") or {}), state, node)
    if spec.launcher == "tmux":
        warnings += _view(folder)
    return {"run": row(folder.spec(), read(folder.journal), here=identity().host).to_json(), "warnings": warnings}


def _check(spec: RunSpec) -> None:
    """What can be known before anything is started."""
    known = shell.values(spec, spec.params, 1, 0, 0)
    folder = shell.workdir(spec, known)
    if not os.path.isdir(folder):
        raise Refusal(BAD_USAGE, f"workdir {folder} does not exist on {spec.node}", "make it, or name another")
    if not os.access(folder, os.X_OK):
        raise Refusal(BAD_USAGE, f"workdir {folder} can't be entered on {spec.node}", "its permissions forbid it")
    if spec.launcher == "tmux" and shutil.which("tmux", path=program.DEFAULT_PATH) is None:
        raise Refusal(UNFIT, f"there is no tmux on {spec.node}", "install it there, or use `launcher: nohup`")
    word = shell.missing_word(spec, known)
    if word is not None:
        other = "python3" if word == "python" and shell.finds("python3", folder) else None
        raise Refusal(
            BAD_USAGE,
            f"command not found on {spec.node}: {word}",
            f"there is {other}" if other else "give its whole path, or bring it into PATH in `setup`",
        )


def _create(spec: RunSpec, node: NodeSpec, state: StateFolder, warnings: List[str], *, force: bool) -> RunFolder:
    """Leases first, then the folder: a crash between leaves a lease that ends by itself. Both under one lock: whoever
    asks for the same run at the same time finds the folder, and leaves its lease alone."""
    if spec.after is not None and life_of(node, spec.after).state != "succeeded":
        return _folder(state, spec, Launch(node, queued=True))
    if spec.gpus == 0:
        return _folder(state, spec, Launch(node))
    with Telemetry(node, program.argv("sample")) as telemetry:
        sample = telemetry.sample()
    warnings += _foreseen(spec, state, eligible(spec, node, sample)[: wanted(spec)], force=force)
    leases = Leases(node)
    with leases.locked():
        folder = state.run(spec.run)
        if os.path.isdir(folder.path):
            return folder
        devices: Optional[List[DeviceSample]] = None
        try:
            devices = choose(spec, node, sample, leases.held())
            if leases.ahead(spec.run, [device.uuid for device in devices]):
                raise Busy("other runs are ahead in the queue", [device.uuid for device in devices])
        except Busy as busy:
            if not spec.queue:
                raise Refusal(UNSAFE, busy.why, "`--queue` waits for them; `gpuctl gpus` shows who has them") from None
            eligible(spec, node, sample)
            devices = None
        if devices is not None:
            leases.take([device.uuid for device in devices], spec.run, spec.share)
        chosen = [{"index": device.index, "uuid": device.uuid} for device in devices or []]
        try:
            return _folder(state, spec, Launch(node, chosen, queued=devices is None))
        except BaseException:
            leases.release(spec.run)
            raise


def _foreseen(spec: RunSpec, state: StateFolder, devices: List[DeviceSample], *, force: bool) -> List[str]:
    """What earlier attempts say of these values. Raises Refusal where they can only fail again, unless forced."""
    entries = ledger.experience(state, spec, devices)
    if not any(entry.too_big for entry in entries):
        return []
    code = shell.code_of(shell.workdir(spec, shell.values(spec, spec.params, 1, 0, 0)))
    found = outlook(spec, entries, code)
    if found.refusal is None:
        return found.warnings
    if not force:
        raise Refusal(UNSAFE, found.refusal, found.hint)
    return [found.refusal]


def _folder(state: StateFolder, spec: RunSpec, launch: Launch) -> RunFolder:
    def fill(aside: RunFolder) -> None:
        write_json(os.path.join(aside.path, LAUNCH_FILE), launch.to_json())

    return state.create_run(spec, fill)[0]


def _supervise(folder: RunFolder, secrets: Dict[str, str], state: StateFolder, node: NodeSpec) -> None:
    """A supervisor for a run that has none. An ended run needs none. A run that does not begin is taken back: what was
    answered as failed must not begin later."""
    why = ""
    try:
        if folder.supervised() or start_supervisor(folder.path, secrets) != "failed":
            return
    except OSError as error:
        why = str(error)
    if _begun(folder):
        return
    lock = _lock(folder)
    if lock is None:
        raise Refusal(
            UNFIT,
            f"the supervisor of {folder.run} has started, but says nothing yet",
            f"`gpuctl ps {folder.run}` shows what becomes of it; look at the machine's load and its disk",
        )
    try:
        if _begun(folder):
            return
        why = why or _last_error(folder)
        removed = state.unlist(folder)
        with contextlib.suppress(Refusal):  # no folder of leases, so no lease
            Leases(node).release(folder.run)
    finally:
        os.close(lock)
    shutil.rmtree(removed, ignore_errors=True)
    raise Refusal(FAILED, f"the supervisor of {folder.run} did not start: {why}", "nothing of the run is left")


def _lock(folder: RunFolder) -> Optional[int]:
    try:
        return try_lock(folder.lock)
    except FileNotFoundError:
        raise Refusal(FAILED, f"{folder.run} was removed while it was started", "") from None


def _begun(folder: RunFolder) -> bool:
    try:
        return bool(read(folder.journal))
    except OSError:
        return False


def _view(folder: RunFolder) -> List[str]:
    """The run goes on without one; what kept it from opening is a warning."""
    try:
        open_view(folder.path)
    except (Refusal, OSError) as error:
        return [f"no view of {folder.run}: {error}; it runs all the same, and `gpuctl tail -f {folder.run}` shows it"]
    return []


def _last_error(folder: RunFolder) -> str:
    path = os.path.join(folder.path, "supervisor.err")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1] if lines else "it left no word"


def _nothing_to_resume(spec: RunSpec) -> List[str]:
    """Where `launch --resume` begins from the start all the same."""
    if spec.resume is None or not spec.resume_older:
        return []
    known = shell.values(spec, spec.params, 1, 0, 0)
    pattern = braces.render(spec.resume.when, known, quote=False)
    if checkpoints(shell.workdir(spec, known), [pattern]):
        return []
    return [f"no whole checkpoint matches {pattern} in {shell.workdir(spec, known)}: it begins from the start"]


def _lingering() -> List[str]:
    """Where systemd-logind would end the run, or its shared memory, when this user logs out."""
    if os.getuid() == 0 or not os.path.isdir("/run/systemd/system"):
        return []
    user = program.login_environment()["USER"]
    if os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return []
    kill, ipc = _logind()
    ends = [what for what, on in (("ends this run's processes", kill), ("removes its /dev/shm files", ipc)) if on]
    return [f"at logout, logind {' and '.join(ends)}: run `loginctl enable-linger {user}` there"] if ends else []


def _logind() -> Tuple[bool, bool]:
    """(KillUserProcesses, RemoveIPC) as logind.conf and its drop-ins set them; their defaults are no and yes."""
    found = {"KillUserProcesses": "no", "RemoveIPC": "yes"}
    paths = ["/etc/systemd/logind.conf"]
    for folder in ("/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"):
        if os.path.isdir(folder):
            paths += sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".conf"))
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    name, equals, value = line.strip().partition("=")
                    if equals and name in found:
                        found[name] = value.strip().lower()
        except OSError:
            continue
    on = ("yes", "true", "1", "on")
    return found["KillUserProcesses"] in on, found["RemoveIPC"] in on
