"""The operations on tuning jobs, and the tuning jobs by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.job import JobRecord
from estimators.local.engine.job_store import JobStore
from estimators.local.engine.listing import cut_page, list_records
from estimators.local.engine.tuning.request import TuningRequest
from estimators.local.engine.tuning.runner import TuningRunner
from estimators.local.engine.tuning.study import Study
from estimators.local.engine.tuning.tuning_job import TuningRecord

logger = logging.getLogger(__name__)

_NAME = "HyperParameterTuningJobName"
_KIND = "tuning-job"
_SUMMARY = (
    _NAME,
    "HyperParameterTuningJobArn",
    "HyperParameterTuningJobStatus",
    "CreationTime",
    "HyperParameterTuningEndTime",
    "LastModifiedTime",
    "TrainingJobStatusCounters",
    "ObjectiveStatusCounters",
)
_SORT_BY = {"Name": _NAME, "CreationTime": "CreationTime", "Status": "HyperParameterTuningJobStatus"}
_SORT_JOBS_BY = {
    "Name": "TrainingJobName",
    "CreationTime": "CreationTime",
    "Status": "TrainingJobStatus",
    "FinalObjectiveMetricValue": "Value",
}


class TuningJobs:
    """Searches hyperparameters with training jobs; ``jobs`` are the training jobs in the store, by name."""

    def __init__(
        self,
        start_job: Callable[[Mapping[str, Any]], JobRecord],
        arn: Callable[[str], str],
        store: JobStore,
        jobs: Mapping[str, JobRecord],
    ) -> None:
        self._start_job = start_job
        self._arn = arn
        # Guards the three below. Taken before the lock of a tuning job, of a training job and of the store.
        # 1. A tuning job is created under it, and none once `_close_reason` is set.
        # 2. The first reason stays, and every runner gets it: after a failure, the later close of the platform does not
        #    hide the failure.
        self._lock = threading.Lock()
        self._records = store.load(_KIND, lambda document, saver: TuningRecord.from_json(document, saver, jobs))
        self._runners: dict[str, TuningRunner] = {}
        self._close_reason = ""
        self._store = store
        self.operations: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateHyperParameterTuningJob": self._create,
            "DescribeHyperParameterTuningJob": self._describe,
            "ListHyperParameterTuningJobs": self._list,
            "ListTrainingJobsForHyperParameterTuningJob": self._list_training_jobs,
            "StopHyperParameterTuningJob": self._stop,
            "DeleteHyperParameterTuningJob": self._delete,
        }

    def find(self, name: str) -> TuningRecord | None:
        """Return the tuning job of a name, or None."""
        return self._records.get(name)

    def close(self, reason: str) -> None:
        """End all tuning jobs as Failed with the first call's reason, and start no more.

        The engine ends the training jobs.
        """
        with self._lock:
            self._close_reason = self._close_reason or reason
            runners = list(self._runners.values())
        for runner in runners:
            runner.close(self._close_reason)

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the thread of each closed tuning job."""
        for runner in list(self._runners.values()):
            runner.join(timeout)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        parsed = TuningRequest.parse(request)
        study = Study(parsed)
        for parent in parsed.parents:
            self._start_warm(study, parsed, self._record(parent))
        record = TuningRecord(parsed, self._arn(parsed.name), self._store.saver(_KIND, parsed.name))
        with self._lock:
            if self._close_reason:
                raise ApiError("ServiceUnavailable", f"No tuning job can start any more: {self._close_reason}", 503)
            if parsed.name in self._records:
                raise ApiError(
                    "ResourceInUse",
                    "Tuning job names must be unique within an AWS account and region; there is one named "
                    f"{parsed.name} already.",
                )
            self._store.admit(record)
            runner = TuningRunner(record, study, self._start_job)
            self._records[parsed.name], self._runners[parsed.name] = record, runner
            runner.start()
        return {"HyperParameterTuningJobArn": record.arn}

    def _start_warm(self, study: Study, request: TuningRequest, parent: TuningRecord) -> None:
        if not parent.ended:
            raise invalid(f"WarmStartConfig: the parent {parent.name} has not ended; wait for it, or stop it.")
        if parent.request.objective != request.objective:
            raise invalid(
                f"WarmStartConfig: the parent {parent.name} has the objective {parent.request.objective}, and this "
                f"tuning job {request.objective}; both must have the same."
            )
        fits = [study.add_known({**parent.request.static, **tuned}, value) for tuned, value in parent.results()]
        logger.info("%s begins with %d of %d results of %s", request.name, sum(fits), len(fits), parent.name)

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._record(request[_NAME]).describe()

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            records = [record.describe() for record in self._records.values()]
        page, token = list_records(
            records,
            request,
            name=_NAME,
            status="HyperParameterTuningJobStatus",
            sort_by=_SORT_BY[request.get("SortBy", "Name")],
        )
        summaries = []
        for record in page:
            config = record["HyperParameterTuningJobConfig"]
            shown = {member: record[member] for member in _SUMMARY if member in record}
            summaries.append({**shown, "Strategy": config["Strategy"], "ResourceLimits": config["ResourceLimits"]})
        return {"HyperParameterTuningJobSummaries": summaries, **token}

    def _list_training_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        objective = "FinalHyperParameterTuningJobObjectiveMetric"
        jobs = [
            {**summary, "Value": summary.get(objective, {}).get("Value")}
            for summary in self._record(request[_NAME]).summaries()
            if request.get("StatusEquals", summary["TrainingJobStatus"]) == summary["TrainingJobStatus"]
        ]
        sort_by = _SORT_JOBS_BY[request.get("SortBy", "Name")]
        if sort_by == "Value":  # as on AWS: jobs without a value are not listed
            jobs = [job for job in jobs if job["Value"] is not None]
        page, token = cut_page(jobs, sort_by, request)
        return {
            "TrainingJobSummaries": [{name: value for name, value in job.items() if name != "Value"} for job in page],
            **token,
        }

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._record(request[_NAME]).stop()
        return {}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._record(request[_NAME])
        if not record.ended:
            raise ApiError("ResourceInUse", f"{record.name} has not ended; stop it before it is deleted.")
        with self._lock:
            if (
                self._records.get(record.name) is record
            ):  # else it was deleted meanwhile, and the name may be a new one's
                self._records.pop(record.name)
                self._runners.pop(record.name, None)
                record.forget()
        return {}

    def _record(self, name: str) -> TuningRecord:
        record = self._records.get(name)
        if record is None:
            raise ApiError("ResourceNotFound", f"There is no tuning job {name}.")
        return record
