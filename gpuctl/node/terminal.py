"""gpuctl's own tmux server (`tmux -L gpuctl`): a session a run, in whose pane only `view` runs.

Supervisor, keeper and job are never in a pane, so nothing that is done to this server ends a run. It starts with a
clean environment, because a tmux server hands its own to every later session, and without anyone's tmux.conf.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, Optional

from gpuctl.node import deadline, program
from gpuctl.node.refusal import UNFIT, Refusal

SERVER = "gpuctl"
DEADLINE_S = 10.0
SIZE = ("-x", "80", "-y", "24")  # until someone attaches: tmux loses lines where it has to fold them into fewer columns
HISTORY = "20000"  # lines to scroll back
KEYS = {"d": ("detach-client",), "[": ("copy-mode",), "PPage": ("copy-mode", "-u")}
"""What follows C-b in a view: to leave and to scroll. All others are taken away: most of them open windows with shells,
which a person would take for the job's, and some end the view."""


def tmux(server: str = SERVER) -> List[str]:
    """The argv in front of every tmux command of ours. Raises Refusal where there is no tmux."""
    found = shutil.which("tmux", path=program.DEFAULT_PATH)
    if found is None:
        raise Refusal(UNFIT, "there is no tmux on this node", "install it there, or use `launcher: nohup`")
    return [found, "-L", server, "-f", os.devnull]


def own_server() -> str:
    """The server whose pane this process runs in."""
    return os.path.basename(os.environ.get("TMUX", "").partition(",")[0]) or SERVER


def has_view(run_dir: str, *, server: str = SERVER) -> bool:
    return _tmux(server, "has-session", "-t", _target(run_dir)).returncode == 0


def open_view(run_dir: str, *, server: str = SERVER, argv: Optional[List[str]] = None) -> None:
    """A session named after the run, whose pane shows its log. One that is there already stays. `argv`: what runs there
    instead of this program's `view`."""
    if has_view(run_dir, server=server):
        return
    name = os.path.basename(run_dir)
    command = argv if argv is not None else program.argv("view", run_dir)
    done = _tmux(server, *_settings(), "new-session", "-d", "-s", name, *SIZE, "--", *command)
    if done.returncode != 0 and not has_view(run_dir, server=server):
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise Refusal(UNFIT, f"tmux could not open a session for {name}: {said}", "`launcher: nohup` needs no tmux")


def _settings() -> List[str]:
    """Of the server, before its first session and again before each."""
    words = ["set-option", "-g", "history-limit", HISTORY, ";", "unbind-key", "-a", "-T", "prefix", ";"]
    for key, action in KEYS.items():
        words += ["bind-key", "-T", "prefix", key, *action, ";"]
    return words


def close_view(run_dir: str, *, server: str = SERVER) -> None:
    """Also where there is none."""
    _tmux(server, "kill-session", "-t", _target(run_dir))


def send_away(run_dir: str, farewell: str, *, server: str = SERVER) -> None:
    """Whoever is attached gets their own terminal back, with this line in it. It must hold no quote."""
    _tmux(server, "detach-client", "-s", _target(run_dir), "-E", f"printf '%s\\n' '{farewell}'")


def _target(run_dir: str) -> str:
    return f"={os.path.basename(run_dir)}"  # exactly this name: without it tmux takes a prefix


def _tmux(server: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        argv, environment = [*tmux(server), *words], program.own_environment()
        return deadline.run(argv, stderr=subprocess.PIPE, env=environment, cwd="/", within_s=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise Refusal(
            UNFIT, f"tmux did not answer within {DEADLINE_S:.0f} s", f"`tmux -L {server} kill-server` harms no run"
        ) from None
