"""Judging, pure: lines, samples, exits and history in; incidents and actions out. No I/O, no clock, no process.

    bytes ─ lines ─► Line ─ signatures, tracebacks, progress ─► reading (clues)
    reading ─ verdict ─► Incident ─ policy, ladder ─► Action

`judge` drives it over a live attempt, `explain` over a log on its own.
"""
