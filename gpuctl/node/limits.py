"""Incidents that no log tells of: limits that the supervisor itself sees passed."""

from __future__ import annotations

from gpuctl.wire.incidents import Incident


def timed_out(limit_s: float) -> Incident:
    return Incident("timeout", True, advice=f"The attempt ran into its timeout of {limit_s:.0f} s.")


def disk_full(path: str) -> Incident:
    return Incident("disk_full", True, advice=f"The disk that holds {path} is full. Make room there, then relaunch.")
