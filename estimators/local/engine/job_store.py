"""What a platform on disk remembers of its jobs: their records and the lines of their logs, in one SQLite file.

Whoever is answered that a job was created, changed or stopped finds it so in the next platform, even if this one is
killed right after: the file is written first.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from estimators.local.engine.errors import ApiError
from estimators.local.engine.states import write_time

logger = logging.getLogger(__name__)

_FORM = 2
_LOCKED_SECONDS = 1.0
"""How long another program may lock the file before what is to be written waits for the next time."""
_MOST_WAITING = 100_000
"""Lines that can't be written yet."""
_SOON_SECONDS = 0.2
_PAGE = 5_000
"""Lines that are read at a time."""
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
"""All jobs were training jobs then."""
_PAGE_OF_LINES = """
    SELECT rowid, stream, time, line FROM lines
    WHERE log_group = ? AND job = ? AND rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?
"""
_LAST_TIME = "SELECT time FROM lines WHERE log_group = ? AND job = ? ORDER BY rowid DESC LIMIT 1"
_JOBS_WITH_LINES = """
    WITH RECURSIVE jobs (job) AS (
        SELECT min(job) FROM lines WHERE log_group = ?1 UNION ALL
        SELECT (SELECT min(job) FROM lines WHERE log_group = ?1 AND job > jobs.job) FROM jobs WHERE job IS NOT NULL
    ) SELECT job FROM jobs WHERE job IS NOT NULL
"""
"""A look at the index for each job, and not at every line."""

Job = TypeVar("Job")
Make: TypeAlias = "Callable[[Mapping[str, Any], RecordSaver], Job]"
"""Makes a job of its record and of what saves it from now on."""


class _Record(Protocol):
    def note(self) -> None: ...

    def forget(self) -> None: ...


class StoredLine(NamedTuple):
    """A line of a job's log."""

    stream: str
    time: int
    """Milliseconds since 1970."""
    line: str


class JobStoreError(ApiError):
    """The file is none of ours, or damaged, or can't be used for now."""

    def __init__(self, message: str) -> None:
        super().__init__("ServiceUnavailable", message, 503)


class JobStore:
    """The file; it is made if it is not there. Any thread may use it.

    What can't be written, on a full disk or in a file that another program locks, is written with what comes next.

    Args:
        path: Where it lies, in a directory that is closed to other users; None: nothing is remembered.

    Raises:
        JobStoreError: It is none of ours, or damaged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # Guards all below. Nothing else is locked while it is held. Order: what is not written yet is written in the
        # order in which it came, in one transaction. Bound: of the lines among it, the newest `_MOST_WAITING`.
        self._lock = threading.Lock()
        self._connection = None if path is None else _open(path)
        self._records: dict[tuple[str, str], str | None] = {}  # None: it is deleted
        self._lines: deque[tuple[str, str, StoredLine]] = deque(maxlen=_MOST_WAITING)
        self._failure = ""
        self._soon: dict[tuple[str, str], Callable[[], None]] = {}
        self._saver: threading.Thread | None = None

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
        with self._lock:
            self._records[kind, name] = content
            self._write()

    def save_soon(self, kind: str, name: str, note: Callable[[], None]) -> None:
        """Have ``note`` called within `_SOON_SECONDS`, once for however many changes there are until then."""
        with self._lock:
            if self._connection is None:
                return
            self._soon[kind, name] = note
            if self._saver is None:
                self._saver = threading.Thread(target=self._save_soon, name="job store", daemon=True)
                self._saver.start()

    def saver(self, kind: str, name: str) -> RecordSaver:
        """Return what saves one job's record."""
        return RecordSaver(self, kind, name)

    def delete(self, kind: str, name: str) -> None:
        """Forget a job; the lines of its log stay, as on AWS."""
        with self._lock:
            self._records[kind, name] = None
            self._write()

    def add_lines(self, group: str, job: str, lines: Sequence[StoredLine]) -> None:
        """Write lines of the log of a job whose log group this is."""
        with self._lock:
            self._lines.extend((group, job, line) for line in lines)
            self._write()

    def require_saved(self) -> None:
        """See that all was written so far.

        Raises:
            JobStoreError: With the reason why it could not be.
        """
        with self._lock:
            self._write()
            if self._failure:
                raise JobStoreError(f"What becomes of jobs can't be kept: {self._failure}.")

    def admit(self, job: _Record) -> None:
        """Write a new job's record; a job that can't be remembered is none.

        Raises:
            JobStoreError: With the reason why it could not be written; nor will it be later.
        """
        job.note()
        try:
            self.require_saved()
        except JobStoreError:
            job.forget()
            raise

    def load(self, kind: str, make: Make[Job]) -> dict[str, Job]:
        """Return the jobs of a kind by their names, each made of its record and of what saves it from now on.

        One that can't be made is left out, and a line in the platform's log says why; its record stays.
        """
        rows = self._query("SELECT name, document FROM records WHERE kind = ? ORDER BY name", kind)
        made = ((name, self._make(kind, name, document, make)) for name, document in rows)
        return {name: job for name, job in made if job is not None}

    def _make(self, kind: str, name: str, document: str, make: Make[Job]) -> Job | None:
        try:
            return make(json.loads(document), self.saver(kind, name))
        except (ApiError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("the %s %s of an earlier platform is left out: %s", kind, name, error)
            return None

    def lines(self, group: str, job: str, *, until: int) -> Iterator[StoredLine]:
        """Yield the lines of a job's log that were there at a `place`, in the order in which they came."""
        after = 0
        while rows := self._query(_PAGE_OF_LINES, group, job, after, until, _PAGE):
            yield from (StoredLine(*row) for _, *row in rows)
            after = rows[-1][0]

    def place(self) -> int:
        """Return how far the lines of all jobs have come."""
        return next((place or 0 for (place,) in self._query("SELECT max(rowid) FROM lines")), 0)

    def jobs_with_lines(self, group: str) -> list[str]:
        """Return the names of the jobs that have lines in a log group."""
        return [name for (name,) in self._query(_JOBS_WITH_LINES, group)]

    def delete_lines(self, group: str, stream: str | None) -> None:
        """Forget a stream of a log group; None: all of them."""
        with self._lock:
            self._write()
        if stream is None:
            self._query("DELETE FROM lines WHERE log_group = ?", group)
        else:
            self._query("DELETE FROM lines WHERE log_group = ? AND stream = ?", group, stream)

    def last_line_time(self, group: str, job: str) -> int | None:
        """Return when a job's last line came, in milliseconds since 1970; None if there is none."""
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
            for note in notes:  # not under the lock: it takes the job's, which is taken before this one
                note()

    def _write(self) -> None:
        """Write what waits, all of it or nothing; under the lock."""
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
                raise JobStoreError(f"{self._path}, which remembers jobs, can't be used: {error}.") from error


class RecordSaver:
    """Saves one job's record, at each of its changes.

    Args:
        store: Where.
        kind: The job's kind.
        name: Its name.
    """

    def __init__(self, store: JobStore, kind: str, name: str) -> None:
        self._store = store
        self._kind = kind
        self._name = name

    def save(self, record: Callable[[], Mapping[str, Any]]) -> None:
        """Write the record that ``record`` makes, with times as datetimes, before it returns."""
        self._store.save(self._kind, self._name, record)

    def save_soon(self, note: Callable[[], None]) -> None:
        """Have ``note`` save the record soon: for changes that come many times a second."""
        self._store.save_soon(self._kind, self._name, note)

    def delete(self) -> None:
        """Forget the job."""
        self._store.delete(self._kind, self._name)


NOTHING_KEPT = JobStore(None)
NO_SAVER = NOTHING_KEPT.saver("", "")


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, _LOCKED_SECONDS, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        # What is written survives this process, if it is killed, but not a power cut in the same second.
        connection.execute("PRAGMA synchronous = NORMAL")
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        if form == 0:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_FORM}; COMMIT;")
        elif form == 1:
            connection.executescript(f"BEGIN; {_FROM_FORM_1} PRAGMA user_version = {_FORM}; COMMIT;")
    except sqlite3.Error as error:
        raise JobStoreError(f"{path}, which remembers jobs, can't be used: {error}.") from error
    if form not in (0, 1, _FORM):
        connection.close()
        raise JobStoreError(f"{path}, which remembers jobs, has the form {form}; this platform knows the form {_FORM}.")
    return connection
