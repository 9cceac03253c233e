"""SageMaker's jobs as a library: a CreateTrainingJob dict in, a DescribeTrainingJob dict out; no HTTP.

A request goes one way. What a runner and its hosts report comes back to the record alone, which decides what follows.

=============  ======================================================================================================
`Engine`       takes every request, and passes it to the operations of one kind
operations     `TrainingOperations`, `ProcessingOperations`, `TuningOperations`, `Experiments`: read the request into a
               frozen value (`TrainingRequest`, …), and answer it from the records; `Tags` and Search serve all kinds
records        `Records` of a kind by name; `JobRecords` start and end the runners; `RecordStore` is the file of all
record         one job, experiment, trial or component, its state under one lock: `Record` ← `JobRecord` ←
               `HostedRecord` ← `TrainingRecord`, `ProcessingRecord`; `JobRecord` ← `TuningRecord`; `Record` ←
               `EntityRecord` ← `ComponentRecord`
runner         the thread of one job, from its start to its end: `HostedRunner` ← `TrainingRunner`,
               `ProcessingRunner`; `TuningRunner`, which starts training jobs
attempt        the hosts of one attempt, by an executor: `AttemptHosts`, with `HostLog`, `Metrics` and `JobFaults`;
               ``transfers/`` brings their input and their output
=============  ======================================================================================================

``records/`` knows no kind of record. ``hosted/`` is the shared part of training and processing jobs: jobs on hosts.
Each kind has a room with the same files: ``request``, ``record``, ``runner``, ``operations``.

The order of the locks: first `Experiments`', then a kind's records', then a record's, last the store's.
"""

from __future__ import annotations

from estimators.local.engine.engine import Engine
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.platform import Platform

__all__ = ["ApiError", "Engine", "Platform"]
