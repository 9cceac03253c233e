"""What a platform on disk remembers of its jobs: their records and the lines of their logs, in one SQLite file.

Whoever is answered that a job was created, changed or stopped finds it so in the next platform, even if this one is
killed right after: the file is written first.
"""

from __future__ import annotations

import functools
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from estimators.local.engine.errors import ApiError
from estimators.local.engine.states import write_time

logger = logging.getLogger(__name__)

_FORM = 1
_TABLES = """
    CREATE TABLE records (kind TEXT, name TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, name));
    CREATE TABLE lines (job TEXT, stream TEXT, time INTEGER, line TEXT);
    CREATE INDEX lines_of_jobs ON lines (job, time);
"""

_JOBS_WITH_LINES = """
    WITH RECURSIVE jobs (job) AS (
        SELECT min(job) FROM lines UNION ALL
        SELECT (SELECT min(job) FROM lines WHERE job > jobs.job) FROM jobs WHERE job IS NOT NULL
    ) SELECT job FROM jobs WHERE job IS NOT NULL
"""
"""A look at the index for each job, and not at every line."""

Keep = Callable[[Callable[[], Mapping[str, Any]]], None]
"""Saves a job's record, at each of its changes; it is given what makes the record, times as datetimes."""
Job = TypeVar("Job")


class StoredLine(NamedTuple):
    """A line of a job's log."""

    stream: str
    time: int
    """Milliseconds since 1970."""
    line: str


class JobStore:
    """The file; it is made if it is not there. Any thread may use it.

    Args:
        path: Where it lies, in a directory that is closed to other users; None: nothing is remembered.

    Raises:
        ValueError: It is none of ours, or damaged.
    """

    def __init__(self, path: Path | None) -> None:
        # Guards the two below. Nothing else is locked while it is held.
        self._lock = threading.Lock()
        self._connection = None if path is None else _open(path)
        self._failure = ""

    def close(self) -> None:
        """Close the file; what comes after is forgotten."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def save(self, kind: str, name: str, record: Callable[[], Mapping[str, Any]]) -> None:
        """Write a job's record, in place of the one that there is; `require_saved` says whether it could be."""
        if self._connection is None:
            return
        content = json.dumps(record(), default=write_time)
        self._write("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", [(kind, name, content)])

    def keeper(self, kind: str, name: str) -> Keep:
        """Return what saves one job's record, at each of its changes."""
        return functools.partial(self.save, kind, name)

    def delete(self, kind: str, name: str) -> None:
        """Forget a job; the lines of its log stay, as on AWS."""
        self._write("DELETE FROM records WHERE kind = ? AND name = ?", [(kind, name)])

    def add_lines(self, job: str, lines: Sequence[StoredLine]) -> None:
        """Write lines of a job's log."""
        self._write("INSERT INTO lines VALUES (?, ?, ?, ?)", [(job, *line) for line in lines])

    def require_saved(self) -> None:
        """See that all was written so far.

        Raises:
            ApiError: ServiceUnavailable, with the reason why it could not be.
        """
        if self._failure:
            raise ApiError("ServiceUnavailable", f"What becomes of jobs can't be kept any more: {self._failure}.", 503)

    def load(self, kind: str, make: Callable[[Mapping[str, Any], Keep], Job]) -> dict[str, Job]:
        """Return the jobs of a kind by their names, each made of its record and of what saves it from now on.

        One that can't be made is left out, and a line in the platform's log says why; its record stays.
        """
        rows = self._read("SELECT name, document FROM records WHERE kind = ? ORDER BY name", kind)
        made = ((name, self._make(kind, name, document, make)) for name, document in rows)
        return {name: job for name, job in made if job is not None}

    def _make(self, kind: str, name: str, document: str, make: Callable[[Mapping[str, Any], Keep], Job]) -> Job | None:
        try:
            return make(json.loads(document), self.keeper(kind, name))
        except (ApiError, KeyError, ValueError, TypeError) as error:
            logger.warning("the %s %s of an earlier platform is left out: %s", kind, name, error)
            return None

    def lines(self, job: str, *, until: int) -> Iterator[StoredLine]:
        """Yield the lines of a job's log that were there at a `place`, in the order of time."""
        statement = "SELECT stream, time, line FROM lines WHERE job = ? AND rowid <= ? ORDER BY time, rowid"
        return (StoredLine(*row) for row in self._read(statement, job, until))

    def place(self) -> int:
        """Return how far the lines of all jobs have come."""
        return next((place or 0 for (place,) in self._read("SELECT max(rowid) FROM lines")), 0)

    def jobs_with_lines(self) -> list[str]:
        """Return the names of the jobs that have lines."""
        return [name for (name,) in self._read(_JOBS_WITH_LINES)]

    def delete_lines(self, stream: str | None) -> None:
        """Forget a stream; None: all of them."""
        if stream is None:
            self._write("DELETE FROM lines", [()])
        else:
            self._write("DELETE FROM lines WHERE stream = ?", [(stream,)])

    def last_line_time(self, job: str) -> int | None:
        """Return when a job's last line came, in milliseconds since 1970; None if there is none."""
        return next((time for (time,) in self._read("SELECT max(time) FROM lines WHERE job = ?", job)), None)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            if self._connection is None or self._failure:
                return
            try:
                self._connection.execute("BEGIN")
                self._connection.executemany(statement, rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:  # a full disk
                logger.exception("the jobs can't be kept any more")
                self._failure = str(error)

    def _read(self, statement: str, *values: str | int) -> list[tuple[Any, ...]]:
        with self._lock:
            return [] if self._connection is None else self._connection.execute(statement, values).fetchall()


NOTHING_KEPT = JobStore(None)


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        # What is written survives this process, if it is killed, but not a power cut in the same second.
        connection.execute("PRAGMA synchronous = NORMAL")
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        if form == 0:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_FORM}; COMMIT;")
    except sqlite3.Error as error:
        raise ValueError(f"{path}, which remembers jobs, can't be used: {error}.") from error
    if form not in (0, _FORM):
        connection.close()
        raise ValueError(f"{path}, which remembers jobs, has the form {form}; this platform knows the form {_FORM}.")
    return connection
