"""The operations on training jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments import Experiments, JobToTrack
from estimators.local.engine.hosted.jobs_of_kind import HostedRecords
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.listing import list_jobs
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.training.runner import TrainingRunner
from estimators.local.engine.validation import Handler
from estimators.local.executors import NoImageError

_NAME = "TrainingJobName"
_SUMMARY = (
    _NAME,
    "TrainingJobArn",
    "CreationTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "TrainingJobStatus",
    "SecondaryStatus",
)


class TrainingOperations:
    """Answers requests about training jobs, each of which has a trial component."""

    def __init__(self, platform: Platform, arn_prefix: str, experiments: Experiments) -> None:
        self._platform = platform
        self._experiments = experiments
        self.jobs = HostedRecords(TrainingRecord, arn_prefix, platform.store, self._make_runner)
        self.operations: Mapping[str, Handler] = {
            "CreateTrainingJob": lambda request: {"TrainingJobArn": self.start(request).arn},
            "DescribeTrainingJob": lambda request: self._job(request).describe(),
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DeleteTrainingJob": self._delete,
        }

    def start(self, request: Mapping[str, Any]) -> TrainingRecord:
        """Start the training job of a request of a valid form; raise ApiError if the request is refused."""
        parsed = TrainingRequest.read(request)
        job = TrainingRecord(parsed, self.jobs.arn(parsed.name))
        with self._experiments.track(JobToTrack(request=parsed, arn=job.arn)):
            self.jobs.run(job)
        return job

    def _make_runner(self, job: TrainingRecord) -> TrainingRunner:
        try:
            image = self._platform.executor.find_image(job.request.image)
        except NoImageError as error:
            raise invalid(f"AlgorithmSpecification.TrainingImage: {error}") from error
        return TrainingRunner(job, image, self._platform)

    def _job(self, request: Mapping[str, Any]) -> TrainingRecord:
        return self.jobs.get(request[_NAME])

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return list_training_jobs((job.summary() for job in self.jobs.all()), request)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._job(request).stop()
        return {}

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._job(request)
        job.update({name: value for name, value in request.items() if name != _NAME})
        return {"TrainingJobArn": job.arn}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._job(request)
        self._experiments.settle(job.arn)
        self.jobs.delete(job)
        return {}


def list_training_jobs(jobs: Iterable[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer ListTrainingJobs from the summaries of all jobs; raise ApiError for an invalid NextToken."""
    if "WarmPoolStatusEquals" in request or "TrainingPlanArnEquals" in request:
        return {"TrainingJobSummaries": []}  # there are neither warm pools nor training plans here
    return list_jobs(jobs, request, word="TrainingJob", members=_SUMMARY, sort_by="CreationTime")
