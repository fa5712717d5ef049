"""`Store`: reading and writing the controller's copy.

It must never stand in the way: where its folder can't be used, it works in memory and says so in `trouble`; a damaged
file is set aside and a new one begun.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuctl.places import state_folder
from gpuctl.store.migrations import migrate
from gpuctl.wire.replies import RunRow

_FILE = "store.sqlite"
_PATIENCE_S = 5.0  # two gpuctl at once write in turn


@dataclass(frozen=True)
class Launched:
    run: str
    job: str
    node: str
    created: str  # UTC, RFC 3339


class Store:
    def __init__(self, db: sqlite3.Connection, trouble: str = "") -> None:
        self._db = db
        self.trouble = trouble
        """Why nothing is kept, in words; empty where all is well."""

    @classmethod
    def open(cls, folder: Path | None = None) -> Store:
        folder = folder or state_folder()
        path = folder / _FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                return cls(_connect(str(path)))
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                aside = path.with_suffix(f".damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}")
                path.rename(aside)
                return cls(_connect(str(path)), f"{path} was damaged; it is now {aside.name}, and a new one was begun")
        except (OSError, sqlite3.Error) as error:
            return cls(_connect(":memory:"), f"{path} can't be used ({error}); this command goes on without it")

    def close(self) -> None:
        self._db.close()

    def launched(self, run: str, job: str, node: str) -> None:
        """A run was launched from here, just now."""
        row = (run, job, node, datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        self._write("INSERT OR IGNORE INTO launched VALUES (?, ?, ?, ?)", [row])

    def saw(self, node: str, rows: Iterable[dict[str, Any]]) -> None:
        """What a node just said of its runs (`RunRow`s as JSON)."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        facts = [(row["run"], node, row["state"], json.dumps(row), now) for row in rows]
        self._write("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)", facts)

    def forget(self, run: str) -> None:
        """The run was removed from its node."""
        self._write("DELETE FROM seen WHERE run = ?", [(run,)])
        self._write("DELETE FROM launched WHERE run = ?", [(run,)])

    def newest(self) -> Launched | None:
        """The newest run launched from here."""
        found = self._db.execute("SELECT run, job, node, created FROM launched ORDER BY created DESC, rowid DESC")
        row = found.fetchone()
        return Launched(*row) if row else None

    def node_of(self, run: str) -> str | None:
        """The node that a run is on, by its full id; None where it was never launched from or seen here."""
        found = self._db.execute(
            "SELECT node FROM launched WHERE run = ? UNION ALL SELECT node FROM seen WHERE run = ?", (run, run)
        ).fetchone()
        return found[0] if found else None

    def seen_on(self, node: str) -> list[RunRow]:
        """What the node last said of its runs."""
        found = self._db.execute("SELECT row FROM seen WHERE node = ? ORDER BY run", (node,))
        return [RunRow.from_json(json.loads(row)) for (row,) in found]

    def runs_starting(self, begun: str) -> list[str]:
        """For completion."""
        found = self._db.execute("SELECT run FROM launched UNION SELECT run FROM seen ORDER BY run")
        return [run for (run,) in found if run.startswith(begun)]

    def _write(self, statement: str, rows: Sequence[tuple[str, ...]]) -> None:
        if not rows:
            return
        try:
            with self._db:
                self._db.executemany(statement, rows)
        except sqlite3.Error as error:  # a full disk here is no reason to fail what was done on a node
            self.trouble = f"the local record of runs could not be written: {error}"


def _connect(place: str) -> sqlite3.Connection:
    db = sqlite3.connect(place, timeout=_PATIENCE_S)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a copy: a power cut may cost its last rows
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db
