"""The records of a kind: names, ARNs, tags, and saves that fail."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.records import NOTHING_KEPT, Records, RecordStore
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest
from tests.estimators.local.engine.training.test_request import REQUEST


def new_records(store: RecordStore = NOTHING_KEPT) -> Records[TrainingRecord]:
    return Records(TrainingRecord.kind, "arn:here", store, TrainingRecord.from_json)


def new_job(records: Records[TrainingRecord], **tags: str) -> TrainingRecord:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return TrainingRecord(TrainingRequest.parse({**REQUEST, "Tags": listed}), records.arn(REQUEST["TrainingJobName"]))


def test_a_record_is_found_by_its_name_and_its_whole_arn() -> None:
    records = new_records()
    job = new_job(records)
    records.add(job)
    assert records.get(job.name) is records.find_arn(f"arn:here:training-job/{job.name}") is job
    assert records.find_arn(f"arn:elsewhere:training-job/{job.name}") is None
    with pytest.raises(ApiError, match="there is one named"):
        records.add(new_job(records))
    assert records.all() == [job]


def test_a_record_that_was_replaced_meanwhile_is_not_removed_in_place_of_the_new_one() -> None:
    records = new_records()
    first, second = new_job(records), new_job(records)
    records.add(first)
    records.add(second, instead_of=first)
    records.remove(first)
    assert records.all() == [second]
    records.remove(second)
    assert records.all() == []


def test_a_record_that_can_not_be_saved_leaves_the_one_in_whose_place_it_would_be(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "jobs.sqlite")
    records = new_records(store)
    first = new_job(records, number="one")
    records.add(first)
    with sqlite3.connect(tmp_path / "jobs.sqlite") as other:
        other.execute("ALTER TABLE records RENAME TO hidden")
    with pytest.raises(ApiError, match="can't be saved"):
        records.add(new_job(records, number="two"), instead_of=first)
    assert records.all() == [first]
    with sqlite3.connect(tmp_path / "jobs.sqlite") as other:
        other.execute("ALTER TABLE hidden RENAME TO records")
    store.require_saved()
    store.close()
    (kept,) = new_records(RecordStore(tmp_path / "jobs.sqlite")).all()
    assert kept.tags == {"number": "one"}


def test_a_record_has_fifty_tags_at_most_and_a_refused_change_changes_none() -> None:
    job = new_job(new_records(), team="a")
    with pytest.raises(ApiError, match="would have 51 tags; 50 is the limit"):
        job.add_tags({f"key-{number}": "" for number in range(50)})
    job.add_tags({"team": "b", "cost": "c"})
    job.remove_tags(["cost", "none"])
    assert job.describe_tags() == [{"Key": "team", "Value": "b"}]
