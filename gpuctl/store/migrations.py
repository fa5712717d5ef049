"""The database's shape, as the steps that led to it. `PRAGMA user_version` counts those that were taken.

A step is never changed once released; the next one is appended.
"""

from __future__ import annotations

import sqlite3


def launched_and_seen(db: sqlite3.Connection) -> None:
    """Runs launched from here, and the last row that a node gave of any run."""
    db.execute(
        "CREATE TABLE launched (run TEXT PRIMARY KEY, job TEXT NOT NULL, node TEXT NOT NULL, created TEXT NOT NULL)"
    )
    db.execute(
        "CREATE TABLE seen (run TEXT PRIMARY KEY, node TEXT NOT NULL, state TEXT NOT NULL, row TEXT NOT NULL, "
        "at TEXT NOT NULL)"
    )


STEPS = (launched_and_seen,)


def migrate(db: sqlite3.Connection) -> None:
    """Takes the missing steps, all or none. A database of a newer gpuctl is left alone: its tables only grew."""
    (taken,) = db.execute("PRAGMA user_version").fetchone()
    if taken >= len(STEPS):
        return
    db.execute("BEGIN IMMEDIATE")  # two commands may start at once: the second waits, then finds the steps taken
    (taken,) = db.execute("PRAGMA user_version").fetchone()
    for step in STEPS[taken:]:
        step(db)
    db.execute(f"PRAGMA user_version = {len(STEPS)}")
    db.execute("COMMIT")
