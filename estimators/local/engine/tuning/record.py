"""The record of one tuning job: its training jobs, their results, and whether another training job follows.

Requests come from any thread, while the tuning job's own thread (`TuningRunner`) works.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.record import KILLED
from estimators.local.engine.records import JobRecord, RecordKind
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.tuning.request import OBJECTIVE_HYPERPARAMETER, TuningRequest, training_resources

IN_PROGRESS, STOPPING = "InProgress", "Stopping"
COMPLETED, FAILED, STOPPED = "Completed", "Failed", "Stopped"

_PROGRESS = 0.01
"""The fraction by which a training job must beat the best before it, to count as progress (botocore's model)."""
_SHOWN = ("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingStartTime", "TrainingEndTime", "FailureReason")


class TuningKind(RecordKind):
    """The kind of tuning jobs; a missing job has its own error."""

    def missing(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # AWS does not show the ARN
        """Return the error for an absent tuning job."""
        return ApiError("ResourceNotFound", f"There is no tuning job {name}.")


@dataclass(kw_only=True, slots=True)
class Trial:
    """One point of the search, and the training job that tries it."""

    number: int
    """The trial's number, from 0."""
    job: TrainingRecord
    hyperparameters: Mapping[str, str]
    """The tuned ones."""
    pruned: bool = False
    """Whether it was stopped early."""


class TuningRecord(JobRecord[TuningRequest]):
    """The record of a tuning job from its creation on."""

    kind = TuningKind(word="tuning job", resource="hyper-parameter-tuning-job", key="tuning-job")

    def __init__(self, request: TuningRequest, arn: str) -> None:
        super().__init__(request, arn)
        self.created = _now()
        self._since = time.monotonic()
        # The record's lock guards all below; training jobs are described without it.
        # 1. Only the runner's thread adds trials and ends the tuning job, as its last step: no trial comes after that.
        # 2. A trial is saved before its training job starts: a kill between the two leaves a trial without a job, which
        #    is not loaded, but never a job that is not listed.
        self._status = IN_PROGRESS
        self._modified = self.created
        self._ended_at: datetime | None = None
        self._failure_reason: str | None = None
        self._trials: list[Trial] = []
        self._starting: list[Any] | None = None
        self._results: list[tuple[Mapping[str, str], float]] = []  # in the order in which trials ended
        self._found = False

    @classmethod
    def from_json(cls, document: Mapping[str, Any], find_job: Callable[[str], TrainingRecord | None]) -> TuningRecord:
        """Return a tuning job of an earlier platform from its `to_json` document, with times as text.

        ``find_job`` returns the training job of a name, or None. Raise ApiError if this platform would refuse the
        request.
        """
        record = cls(TuningRequest.parse(document["request"]), document["arn"])
        record._restore(document)
        record.created = datetime.fromisoformat(document["created"])
        record._modified = datetime.fromisoformat(document["modified"])
        record._status, record._failure_reason = document["status"], document["failure_reason"]
        record._trials = [
            Trial(job=job, number=number, hyperparameters=tuned, pruned=pruned)
            for name, number, tuned, pruned in document["trials"]
            if (job := find_job(name)) is not None  # else it was deleted, or never started
        ]
        record._results = [(tuned, value) for tuned, value in document["results"]]
        record._ended_at = datetime.fromisoformat(document["ended"]) if document["ended"] else None
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, with times as datetimes."""
        with self._lock:
            trials = [[each.job.name, each.number, each.hyperparameters, each.pruned] for each in self._trials]
            return {
                **super().to_json(),
                "created": self.created,
                "modified": self._modified,
                "ended": self._ended_at,
                "status": self._status,
                "failure_reason": self._failure_reason,
                "trials": trials if self._starting is None else [*trials, self._starting],
                "results": self._results,
            }

    @property
    def ended(self) -> bool:
        """Whether the tuning job has ended and will not change."""
        return self._ended_at is not None

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested: no more training jobs start."""
        return self._status == STOPPING

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials so far, in their order."""
        with self._lock:
            return tuple(self._trials)

    def expect(self, number: int, name: str, hyperparameters: Mapping[str, str]) -> None:
        """Save a trial before its training job starts."""
        with self._lock:
            self._starting = [name, number, hyperparameters, False]
            self.note()

    def add(self, trial: Trial) -> None:
        """Add a trial whose training job has started."""
        with self._lock:
            self._starting = None
            self._trials.append(trial)
            self._modified = _now()
            self.note()

    def add_result(self, trial: Trial, value: float) -> None:
        """Add the value of an ended trial, and decide whether the search has reached its goal."""
        request = self.request
        with self._lock:
            self._results.append((trial.hyperparameters, value))
            best, since = None, 0
            for _, each in self._results:
                since = 0 if request.is_better(each, best, by=_PROGRESS) else since + 1
                best = each if request.is_better(each, best) else best
            reached = request.target is not None and best is not None and not request.is_better(request.target, best)
            stands = request.most_without_progress is not None and since >= request.most_without_progress
            self._found = self._found or reached or stands
            self.note()

    def results(self) -> list[tuple[Mapping[str, str], float]]:
        """Return the tuned hyperparameters and the value of each trial that has a value."""
        with self._lock:
            return list(self._results)

    def stop(self) -> None:
        """Start no more training jobs; do nothing if the search has ended."""
        with self._lock:
            if self._status == IN_PROGRESS:
                self._status, self._modified = STOPPING, _now()
                self.note()

    def finish(self, status: str, failure_reason: str | None = None) -> None:
        """End the tuning job."""
        with self._lock:
            self._status, self._failure_reason = status, failure_reason
            self._modified = self._ended_at = _now()
            self.note()

    def outlive(self) -> None:
        """End a tuning job after its platform was killed: Stopped if it was stopping, otherwise Failed."""
        self.finish(*((STOPPED,) if self.is_stopping else (FAILED, KILLED)))

    def wants_more(self) -> bool:
        """Return whether another trial follows: no stop, goal or limit was reached."""
        most = self.request.most_jobs
        with self._lock:
            return self._status == IN_PROGRESS and not self._found and (most is None or len(self._trials) < most)

    def has_time(self) -> bool:
        """Return whether MaxRuntimeInSeconds is not reached."""
        return self.request.max_runtime is None or time.monotonic() - self._since < self.request.max_runtime

    def describe(self) -> dict[str, Any]:
        """Return the description as DescribeHyperParameterTuningJob shows it."""
        summaries = self.summaries()
        with self._lock:
            progress = {
                "HyperParameterTuningJobStatus": self._status,
                "LastModifiedTime": self._modified,
                **({"HyperParameterTuningEndTime": self._ended_at} if self._ended_at else {}),
                **({"FailureReason": self._failure_reason} if self._failure_reason else {}),
            }
        states = Counter(summary["TrainingJobStatus"] for summary in summaries)
        objectives = Counter(summary["ObjectiveStatus"] for summary in summaries)
        best = self._best(summaries)
        seconds = sum(each.job.describe().get("TrainingTimeInSeconds", 0) for each in self.trials)
        return {
            **self._describe_request(),
            "HyperParameterTuningJobArn": self.arn,
            "CreationTime": self.created,
            **progress,
            "TrainingJobStatusCounters": {
                "Completed": states["Completed"],
                "InProgress": states["InProgress"] + states["Stopping"],
                "RetryableError": 0,
                "NonRetryableError": states["Failed"],
                "Stopped": states["Stopped"],
            },
            "ObjectiveStatusCounters": {name: objectives[name] for name in ("Succeeded", "Pending", "Failed")},
            **({"BestTrainingJob": best} if best else {}),
            "ConsumedResources": {"RuntimeInSeconds": seconds},
        }

    def _describe_request(self) -> dict[str, Any]:
        """Return the request with the members that AWS adds, which the SDK's tuner expects."""
        asked = copy.deepcopy({name: value for name, value in self.request.members.items() if name != "Tags"})
        config, definition = asked["HyperParameterTuningJobConfig"], asked["TrainingJobDefinition"]
        config["TrainingJobEarlyStoppingType"] = config.get("TrainingJobEarlyStoppingType", "Off")
        definition["StaticHyperParameters"] = {
            **definition.get("StaticHyperParameters", {}),
            OBJECTIVE_HYPERPARAMETER: self.request.metric,
        }
        # The SDK's tuner sends HyperParameterTuningResourceConfig, and reads ResourceConfig when it attaches.
        definition["ResourceConfig"] = training_resources(definition)
        return asked

    def summaries(self) -> list[dict[str, Any]]:
        """Return the training jobs as ListTrainingJobsForHyperParameterTuningJob shows them."""
        return [self._summary(each) for each in self.trials]

    def _summary(self, trial: Trial) -> dict[str, Any]:
        job = trial.job.describe()
        value = trial.job.metrics.last(self.request.metric)
        summary = {
            **{member: job[member] for member in _SHOWN if member in job},
            "TrainingJobStatus": job["TrainingJobStatus"],
            "TunedHyperParameters": dict(trial.hyperparameters),
            "TuningJobName": self.name,
        }
        if not trial.job.ended:
            return {**summary, "ObjectiveStatus": "Pending"}
        if value is None or job["TrainingJobStatus"] == "Failed":
            return {**summary, "ObjectiveStatus": "Failed"}
        return {
            **summary,
            "ObjectiveStatus": "Succeeded",
            "FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": self.request.metric, "Value": value},
        }

    def _best(self, summaries: list[dict[str, Any]]) -> dict[str, Any] | None:
        done = [summary for summary in summaries if summary["ObjectiveStatus"] == "Succeeded"]
        choose = max if self.request.maximize else min
        member = "FinalHyperParameterTuningJobObjectiveMetric"
        best = choose(done, key=lambda summary: summary[member]["Value"], default=None)
        kind = "Maximize" if self.request.maximize else "Minimize"
        return best and {**best, member: {"Type": kind, **best[member]}}


def _now() -> datetime:
    return datetime.now(timezone.utc)
