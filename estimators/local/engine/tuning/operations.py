"""The operations on tuning jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.listing import cut_page, list_jobs
from estimators.local.engine.records import JobRecords, RecordStore
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.tuning.record import TuningRecord
from estimators.local.engine.tuning.request import TuningRequest
from estimators.local.engine.tuning.runner import StartJob, TuningRunner
from estimators.local.engine.tuning.study import Study
from estimators.local.engine.validation import Handler

logger = logging.getLogger(__name__)

_NAME = "HyperParameterTuningJobName"
_SUMMARY = (
    _NAME,
    "HyperParameterTuningJobArn",
    "HyperParameterTuningJobStatus",
    "CreationTime",
    "HyperParameterTuningEndTime",
    "LastModifiedTime",
    "TrainingJobStatusCounters",
    "ObjectiveStatusCounters",
    "Strategy",
    "ResourceLimits",
)
_SORT_JOBS_BY = {
    "Name": "TrainingJobName",
    "CreationTime": "CreationTime",
    "Status": "TrainingJobStatus",
    "FinalObjectiveMetricValue": "Value",
}


class TuningOperations:
    """Answers requests about tuning jobs, which search hyperparameters by training jobs."""

    def __init__(
        self,
        start_job: StartJob,
        find_job: Callable[[str], TrainingRecord | None],  # returns the training job of a name
        arn_prefix: str,
        store: RecordStore,
    ) -> None:
        self._start_job = start_job
        self.jobs: JobRecords[TuningRecord, TuningRunner] = JobRecords(
            TuningRecord.kind, arn_prefix, store, lambda document: TuningRecord.from_json(document, find_job)
        )
        for job in self.jobs.all():
            if not job.ended:
                job.outlive()
        self.operations: Mapping[str, Handler] = {
            "CreateHyperParameterTuningJob": self._create,
            "DescribeHyperParameterTuningJob": lambda request: self._job(request).describe(),
            "ListHyperParameterTuningJobs": self._list,
            "ListTrainingJobsForHyperParameterTuningJob": self._list_training_jobs,
            "StopHyperParameterTuningJob": self._stop,
            "DeleteHyperParameterTuningJob": self._delete,
        }

    def close(self, reason: str) -> None:
        """End all tuning jobs as Failed with the first call's reason, and start no more.

        The engine ends the training jobs.
        """
        self.jobs.refuse(f"No tuning job can start any more: {reason}")
        for runner in self.jobs.runners():
            runner.close(reason)

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the thread of each closed tuning job."""
        for runner in self.jobs.runners():
            runner.join(timeout)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        parsed = TuningRequest.read(request)
        study = Study(parsed)
        for parent in parsed.parents:
            self._start_warm(study, parsed, self.jobs.get(parent))
        job = TuningRecord(parsed, self.jobs.arn(parsed.name))
        self.jobs.start(job, TuningRunner(job, study, self._start_job))
        return {"HyperParameterTuningJobArn": job.arn}

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

    def _job(self, request: Mapping[str, Any]) -> TuningRecord:
        return self.jobs.get(request[_NAME])

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        jobs = []
        for described in (job.describe() for job in self.jobs.all()):
            config = described["HyperParameterTuningJobConfig"]
            jobs.append({**described, "Strategy": config["Strategy"], "ResourceLimits": config["ResourceLimits"]})
        return list_jobs(jobs, request, word="HyperParameterTuningJob", members=_SUMMARY, sort_by="Name")

    def _list_training_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        objective = "FinalHyperParameterTuningJobObjectiveMetric"
        jobs = [
            {**summary, "Value": summary.get(objective, {}).get("Value")}
            for summary in self._job(request).summaries()
            if request.get("StatusEquals", summary["TrainingJobStatus"]) == summary["TrainingJobStatus"]
        ]
        sort_by = _SORT_JOBS_BY[request.get("SortBy", "Name")]
        if sort_by == "Value":  # as on AWS: jobs without a value are not listed
            jobs = [job for job in jobs if job["Value"] is not None]
        page, token = cut_page(jobs, sort_by, request, name="TrainingJobName")
        return {
            "TrainingJobSummaries": [{name: value for name, value in job.items() if name != "Value"} for job in page],
            **token,
        }

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._job(request).stop()
        return {}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.jobs.delete(self._job(request))
        return {}
