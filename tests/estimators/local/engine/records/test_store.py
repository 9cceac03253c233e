from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.records import Records, RecordStore, RecordStoreError, StoredLine
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest
from tests.estimators.local.engine.training.test_request import REQUEST
from tests.estimators.local.submitted_jobs import await_that

GROUP = "/aws/sagemaker/TrainingJobs"


def test_a_deleted_stream_takes_no_other_with_it_whose_name_begins_so(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "jobs.sqlite")
    for stream in ("a/algo-1-1", "a/algo-1-12", "ab/algo-1-1"):
        store.add_lines(GROUP, stream.partition("/")[0], [StoredLine(stream, 1, "said")])
    store.delete_lines(GROUP, "a")
    store.delete_lines(GROUP, "a/algo-1-1")
    assert [each.stream for each in store.lines(GROUP, "a", until=9)] == ["a/algo-1-12"]
    assert store.jobs_with_lines(GROUP) == ["a", "ab"]
    store.delete_lines(GROUP, None)
    assert not store.jobs_with_lines(GROUP)
    store.close()


def test_what_cannot_be_written_for_now_is_written_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.local.engine.records.store._LOCKED_SECONDS", 0.01)
    store = RecordStore(tmp_path / "jobs.sqlite")
    store.save("training-job", "gone", dict)
    other = sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.save("training-job", "old", lambda: {"number": 1})
    store.save("training-job", "old", lambda: {"number": 2})
    store.delete("training-job", "gone")
    store.add_lines(GROUP, "old", [StoredLine("old/algo-1-1", 1, "said")])
    with pytest.raises(ApiError, match="The records of jobs can't be saved: database is locked"):
        store.require_saved()
    jobs = Records(TrainingRecord.kind, "arn", store, TrainingRecord.from_json)
    with pytest.raises(ApiError, match="database is locked"):
        jobs.add(TrainingRecord(TrainingRequest.parse(REQUEST), "arn"))
    assert jobs.all() == []
    with pytest.raises(RecordStoreError, match="database is locked"):
        store.delete_lines(GROUP, "old/algo-1-1")
    other.execute("ROLLBACK")
    store.require_saved()
    store.close()
    again = RecordStore(tmp_path / "jobs.sqlite")
    assert again.load("training-job", lambda document: document) == {"old": {"number": 2}}
    assert [line.line for line in again.lines(GROUP, "old", until=9)] == ["said"]


def test_a_record_that_is_none_is_left_out_and_a_file_of_others_is_an_error(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "jobs.sqlite")
    store.save("training-job", "nonsense", lambda: {"request": 1})
    assert store.load("training-job", TrainingRecord.from_json) == {}
    store.close()
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("PRAGMA user_version = 1")
    with pytest.raises(RecordStoreError, match=r"other\.sqlite, which remembers jobs, can't be used: no such table"):
        RecordStore(tmp_path / "other.sqlite").jobs_with_lines(GROUP)


def test_the_file_of_a_platform_that_knew_training_jobs_alone_is_read_on(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "jobs.sqlite") as earlier:
        earlier.executescript(
            """
            CREATE TABLE records (kind TEXT, name TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, name));
            CREATE TABLE lines (job TEXT, stream TEXT, time INTEGER, line TEXT);
            CREATE INDEX lines_of_jobs ON lines (job);
            INSERT INTO lines VALUES ('a', 'a/algo-1-1', 1, 'said');
            PRAGMA user_version = 1;
            """
        )
    store = RecordStore(tmp_path / "jobs.sqlite")
    store.add_lines("/aws/sagemaker/ProcessingJobs", "a", [StoredLine("a/algo-1-1", 1, "processed")])
    assert [line.line for line in store.lines(GROUP, "a", until=9)] == ["said"]
    store.delete_lines(GROUP, None)
    assert store.jobs_with_lines(GROUP) == []
    assert store.jobs_with_lines("/aws/sagemaker/ProcessingJobs") == ["a"]
    store.close()


def test_changes_that_come_fast_are_saved_soon_and_a_deleted_job_stays_away(tmp_path: Path) -> None:
    store, saved = RecordStore(tmp_path / "jobs.sqlite"), []

    def note() -> None:
        saved.append(1)
        store.save("training-job", "fast", lambda: {"number": len(saved)})

    for _ in range(1000):
        store.save_soon("training-job", "fast", note)
    deadline = time.monotonic() + 30
    while not saved:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    assert len(saved) < 10
    # The last change is noted before it is written, which may take seconds.
    await_that(lambda: store.load("training-job", lambda document: document["number"]) == {"fast": len(saved)})
    job = TrainingRecord(TrainingRequest.parse(REQUEST), "arn")
    job.save_in(store)
    job.note()
    job.forget()
    job.note()
    assert set(store.load("training-job", lambda document: document)) == {"fast"}
