"""The saved records of a platform: each has a name, an ARN, tags, and one lock under which it changes and is saved.

`Record` is one of them and `Records` are all of one kind; of jobs, `JobRecord` and `JobRecords`, where each job has a
`Runner`, the thread that does its work. `RecordStore` is the file that keeps all records, and the lines of the jobs'
logs. `Tags` answers requests about the tags of any record.
"""

from __future__ import annotations

from estimators.local.engine.records.records import (
    JobRecord,
    JobRecords,
    JobRequest_co,
    Record,
    RecordKind,
    Records,
    Runner,
    Tags,
    read_tags,
)
from estimators.local.engine.records.store import (
    NOTHING_KEPT,
    RecordStore,
    RecordStoreError,
    StoredLine,
    write_time,
)

__all__ = [
    "NOTHING_KEPT",
    "JobRecord",
    "JobRecords",
    "JobRequest_co",
    "Record",
    "RecordKind",
    "RecordStore",
    "RecordStoreError",
    "Records",
    "Runner",
    "StoredLine",
    "Tags",
    "read_tags",
    "write_time",
]
