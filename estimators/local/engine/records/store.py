"""The memory of a platform on disk: its records and the lines of its jobs' logs, in one SQLite file.

The file is written before a request is answered. So the next platform knows each job that was created, changed or
stopped, even if this platform is killed right after the answer.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from estimators.local.engine.errors import ApiError

logger = logging.getLogger(__name__)

_FORM = 2
_LOCKED_SECONDS = 1.0
"""How long a write waits while another program locks the file; then the next write includes it."""
_MOST_WAITING = 100_000
"""Lines kept in memory while they can't be written."""
_SOON_SECONDS = 0.2
_PAGE = 5_000
"""Lines read at a time."""
_TABLES = """
    CREATE TABLE records (kind TEXT, name TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, name));
    CREATE TABLE lines (job TEXT, stream TEXT, time INTEGER, line TEXT, log_group TEXT NOT NULL);
    CREATE INDEX lines_of_jobs ON lines (log_group, job);
"""
_FROM_FORM_1 = """
    ALTER TABLE lines ADD COLUMN log_group TEXT NOT NULL DEFAULT '/aws/sagemaker/TrainingJobs';
    DROP INDEX lines_of_jobs;
    CREATE INDEX lines_of_jobs ON lines (log_group, job);
"""
"""In form 1, all jobs were training jobs."""
_PAGE_OF_LINES = """
    SELECT rowid, stream, time, line FROM lines
    WHERE log_group = ? AND job = ? AND rowid > ? AND rowid <= ? AND time > ? ORDER BY rowid LIMIT ?
"""
_LAST_TIME = "SELECT time FROM lines WHERE log_group = ? AND job = ? ORDER BY rowid DESC LIMIT 1"
_JOBS_WITH_LINES = """
    WITH RECURSIVE jobs (job) AS (
        SELECT min(job) FROM lines WHERE log_group = ?1 UNION ALL
        SELECT (SELECT min(job) FROM lines WHERE log_group = ?1 AND job > jobs.job) FROM jobs WHERE job IS NOT NULL
    ) SELECT job FROM jobs WHERE job IS NOT NULL
"""
"""One look-up in the index for each job, instead of a scan of all lines."""

R = TypeVar("R")


class StoredLine(NamedTuple):
    """A line of a job's log."""

    stream: str
    time: int
    """Milliseconds since 1970."""
    line: str


class RecordStoreError(ApiError):
    """The file has no records, is damaged, or can't be used for now."""

    def __init__(self, message: str) -> None:
        super().__init__("ServiceUnavailable", message, 503)


class RecordStore:
    """The file, made if absent; any thread may use it.

    Data that can't be written, on a full disk or in a file that another program locks, is written with the next write.
    """

    def __init__(self, path: Path | None) -> None:  # in a directory closed to other users; None: remember nothing
        self._path = path
        # Guards all below; no other lock is taken while it is held. Callers hold a record's own lock around each save,
        # so the saves of one record keep their order. All pending data is written in one transaction, lines in their
        # order. Bound: the newest `_MOST_WAITING` lines.
        self._lock = threading.Lock()
        self._connection = None if path is None else _open(path)
        self._records: dict[tuple[str, str], str | None] = {}  # None: deleted
        self._lines: deque[tuple[str, str, StoredLine]] = deque(maxlen=_MOST_WAITING)
        self._failure = ""
        self._soon: dict[tuple[str, str], Callable[[], None]] = {}
        self._saver: threading.Thread | None = None

    def close(self) -> None:
        """Close the file; later data is forgotten."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def save(self, kind: str, name: str, record: Callable[[], Mapping[str, Any]]) -> None:
        """Write a record, in place of the earlier one; `require_saved` tells whether that worked."""
        if self._connection is None:
            return
        content = json.dumps(record(), default=write_time)
        with self._lock:
            self._records[kind, name] = content
            self._write()

    def save_soon(self, kind: str, name: str, note: Callable[[], None]) -> None:
        """Call ``note`` after `_SOON_SECONDS`, once for all changes until then."""
        with self._lock:
            if self._connection is None:
                return
            self._soon[kind, name] = note
            if self._saver is None:
                self._saver = threading.Thread(target=self._save_soon, name="job store", daemon=True)
                self._saver.start()

    def delete(self, kind: str, name: str) -> None:
        """Delete a record; the lines of a job's log stay, as on AWS."""
        with self._lock:
            self._records[kind, name] = None
            self._write()

    def add_lines(self, group: str, job: str, lines: Sequence[StoredLine]) -> None:
        """Write lines of a job's log."""
        with self._lock:
            self._lines.extend((group, job, line) for line in lines)
            self._write()

    def require_saved(self) -> None:
        """Write all pending data; raise RecordStoreError with the reason if that fails."""
        with self._lock:
            self._write()
            if self._failure:
                raise RecordStoreError(f"The records of jobs can't be saved: {self._failure}.")

    def load(self, kind: str, restore: Callable[[Mapping[str, Any]], R]) -> dict[str, R]:
        """Return the records of a kind by name, each restored from its document, with times as text.

        A record that can't be restored is left out, with a warning; its document stays.
        """
        rows = self._query("SELECT name, document FROM records WHERE kind = ? ORDER BY name", kind)
        restored = ((name, self._restore(kind, name, document, restore)) for name, document in rows)
        return {name: record for name, record in restored if record is not None}

    def _restore(self, kind: str, name: str, document: str, restore: Callable[[Mapping[str, Any]], R]) -> R | None:
        try:
            return restore(json.loads(document))
        except (ApiError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("the %s %s of an earlier platform is left out: %s", kind, name, error)
            return None

    def lines(self, group: str, job: str, *, until: int, later_than: int = -1) -> Iterator[StoredLine]:
        """Yield the lines of a job's log up to a position and later than a time, in the order they came."""
        after = 0
        while rows := self._query(_PAGE_OF_LINES, group, job, after, until, later_than, _PAGE):
            yield from (StoredLine(*row) for _, *row in rows)
            after = rows[-1][0]

    def last_position(self) -> int:
        """Return the position of the newest line of all jobs, 0 without lines."""
        return next((position or 0 for (position,) in self._query("SELECT max(rowid) FROM lines")), 0)

    def jobs_with_lines(self, group: str) -> list[str]:
        """Return the names of the jobs that have lines in a log group."""
        return [name for (name,) in self._query(_JOBS_WITH_LINES, group)]

    def delete_lines(self, group: str, stream: str | None) -> None:
        """Delete the lines of a stream of a log group, or of all its streams if None."""
        with self._lock:
            self._write()
        if stream is None:
            self._query("DELETE FROM lines WHERE log_group = ?", group)
        else:
            self._query("DELETE FROM lines WHERE log_group = ? AND stream = ?", group, stream)

    def last_line_time(self, group: str, job: str) -> int | None:
        """Return the time of a job's last line in milliseconds since 1970, or None without lines."""
        found = self._query(_LAST_TIME, group, job)
        return next((time for (time,) in found), None)

    def _save_soon(self) -> None:
        while True:
            time.sleep(_SOON_SECONDS)
            with self._lock:
                notes, self._soon = list(self._soon.values()), {}
                if not notes:
                    self._saver = None
                    return
            for note in notes:  # without the lock: `note` takes the record's lock, which comes before this one
                note()

    def _write(self) -> None:
        """Write all pending data in one transaction; the caller holds the lock."""
        if self._connection is None:  # nothing is remembered
            self._records.clear()
            self._lines.clear()
        if self._connection is None or not (self._records or self._lines):
            return
        saved = [(kind, name, content) for (kind, name), content in self._records.items() if content is not None]
        deleted = [key for key, content in self._records.items() if content is None]
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("DELETE FROM records WHERE kind = ? AND name = ?", deleted)
                self._connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", saved)
                lines = [(job, *line, group) for group, job, line in self._lines]
                self._connection.executemany("INSERT INTO lines VALUES (?, ?, ?, ?, ?)", lines)
        except sqlite3.Error as error:
            if not self._failure:
                logger.exception("what becomes of jobs can't be kept for now")
            self._failure = str(error)
            return
        self._records.clear()
        self._lines.clear()
        self._failure = ""

    def _query(self, statement: str, *values: str | int) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return [] if self._connection is None else self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise RecordStoreError(f"{self._path}, which remembers jobs, can't be used: {error}.") from error


NOTHING_KEPT = RecordStore(None)


def write_time(value: object) -> str:
    """Return a datetime as ISO 8601 text, for the ``default`` of `json.dumps`."""
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, _LOCKED_SECONDS, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        # A write survives a kill of this process, but not a power cut in the same second.
        connection.execute("PRAGMA synchronous = NORMAL")
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        if form == 0:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_FORM}; COMMIT;")
        elif form == 1:
            connection.executescript(f"BEGIN; {_FROM_FORM_1} PRAGMA user_version = {_FORM}; COMMIT;")
    except sqlite3.Error as error:
        raise RecordStoreError(f"{path}, which remembers jobs, can't be used: {error}.") from error
    if form not in (0, 1, _FORM):
        connection.close()
        raise RecordStoreError(
            f"{path}, which remembers jobs, has the form {form}; this platform knows the form {_FORM}."
        )
    return connection
