"""`TrainingJob`: a handle on a job that was sent. It can be lost without harm: the job's name makes a new one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.log_reader import LOG_GROUP, LogLine, LogReader
from estimators.log_view import LogView

if TYPE_CHECKING:
    import boto3
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef, SecondaryStatusTransitionTypeDef

    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)

ENDED = frozenset({"Completed", "Failed", "Stopped"})

_STOPPED_BY: Mapping[str, str] = {
    "MaxRuntimeExceeded": "it ran for the whole of max_run (MaxRuntimeInSeconds); give it more, or resume it from its "
    "checkpoint",
    "MaxWaitTimeExceeded": "it took the whole of max_wait (MaxWaitTimeInSeconds), waiting included; give it more, or "
    "resume it from its checkpoint",
    "Interrupted": "its spot instances were taken away",
    "Stopped": "somebody called StopTrainingJob",
}
"""Why a job is Stopped, by its secondary status."""

_SHORTEST_POLL, _LONGEST_POLL, _LONGEST_SETTLING = 0.25, 5.0, 3.0
"""Seconds. How often a job is looked at grows with the time it has taken, and so does how long its last lines, which
CloudWatch shows later than the job's end, are waited for."""


class TrainingJob:
    """One training job, running or ended.

    Examples:
        A name is all that one needs::

            job = TrainingJob.attach("run-7", sagemaker_session)
            job.wait()  # shows the log; raises TrainingJobFailed with the FailureReason
            print(job.status, job.model_data)
    """

    def __init__(self, name: str, session: Session | boto3.Session) -> None:
        """Point at a job; nothing is asked yet.

        Args:
            name: The job's name.
            session: Where the job is: the SDK's session, or boto3's.
        """
        boto_session: Any = getattr(session, "boto_session", session)
        self.name = name
        """The job's name."""
        self._sagemaker: Any = getattr(session, "sagemaker_client", None) or boto_session.client("sagemaker")
        self._boto_session = boto_session

    @classmethod
    def attach(cls, name: str, session: Session | boto3.Session | None = None) -> TrainingJob:
        """Return a handle on a job that was sent earlier, by anybody.

        Args:
            name: The job's name.
            session: Where the job is; by default AWS, as boto3 is configured.

        Raises:
            botocore.exceptions.ClientError: There is no such job.
        """
        if session is None:
            import boto3

            session = boto3.Session()
        job = cls(name, session)
        job.describe()
        return job

    def describe(self) -> DescribeTrainingJobResponseTypeDef:
        """Return all that the API says about the job (DescribeTrainingJob)."""
        description: DescribeTrainingJobResponseTypeDef = self._sagemaker.describe_training_job(
            TrainingJobName=self.name
        )
        return description

    @property
    def arn(self) -> str:
        """The job's Amazon Resource Name."""
        return self.describe()["TrainingJobArn"]

    @property
    def status(self) -> str:
        """InProgress, Stopping, or one of `ENDED`."""
        return self.describe()["TrainingJobStatus"]

    @property
    def secondary_status(self) -> str:
        """The finer status, such as Starting, Downloading, Training, Interrupted, MaxRuntimeExceeded."""
        return self.describe()["SecondaryStatus"]

    @property
    def model_data(self) -> str:
        """The S3 URI of the model archive.

        Raises:
            EstimatorError: The job has none (yet).
        """
        description = self.describe()
        uri = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        if not uri:
            raise EstimatorError(f"{self.name} has no model: it is {description['TrainingJobStatus']}.")
        return uri

    @property
    def checkpoint_s3_uri(self) -> str | None:
        """The S3 prefix that holds the checkpoints, if the job keeps any."""
        return self.describe().get("CheckpointConfig", {}).get("S3Uri")

    def metrics(self) -> dict[str, float]:
        """Return the last value of each metric of the job's metric definitions."""
        return {metric["MetricName"]: metric["Value"] for metric in self.describe().get("FinalMetricDataList", [])}

    def stop(self) -> None:
        """Ask the platform to stop the job: SIGTERM, a grace of 120 s, SIGKILL. Does nothing to an ended job."""
        if self.status not in ENDED:
            self._sagemaker.stop_training_job(TrainingJobName=self.name)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield the log from its beginning, as pairs of host and line, until the job has ended and all is read."""
        return ((line.host, line.message) for line in self.lines())

    def lines(self) -> Iterator[LogLine]:
        """Yield the log as `logs` gives it, each line with its time."""
        return (event for event in self._follow() if isinstance(event, LogLine))

    def wait(self, logs: bool = True) -> None:
        """Wait for the job's end. Ctrl-C leaves the job running, as long as its platform does.

        Args:
            logs: Whether to show the job's name, its log, and its changes of status, on stdout.

        Raises:
            TrainingJobFailed: The job failed.
            TrainingJobStopped: The job was stopped.
        """
        view = LogView() if logs else None
        if view is not None:
            view.show_name(self.name)
        try:
            for event in self._follow(with_lines=logs):
                if view is None:
                    continue
                if isinstance(event, LogLine):
                    view.show_line(event.host, event.message)
                else:
                    view.show_status(event["StartTime"], event["Status"], event.get("StatusMessage", ""))
        except KeyboardInterrupt:
            logger.warning(
                "%s goes on %s. To stop it: TrainingJob.attach(%r).stop(), or: aws sagemaker "
                "stop-training-job --training-job-name %s. To wait again: TrainingJob.attach(%r).wait()",
                self.name,
                "until its local platform ends"
                if getattr(self._boto_session, "ends_with_program", False)
                else "without you",
                *(self.name,) * 3,
            )
            raise
        self.require_completed(self.describe())

    def _follow(self, *, with_lines: bool = True) -> Iterator[LogLine | SecondaryStatusTransitionTypeDef]:
        """Yield the job's lines and changes of status as they come, until its end."""
        reader = LogReader(self._boto_session.client("logs"), self.name) if with_lines else None
        shown: set[tuple[str, datetime]] = set()
        began, ended = time.monotonic(), None
        while True:
            description = self.describe()
            for transition in description.get("SecondaryStatusTransitions", []):
                key = transition["Status"], transition["StartTime"]
                if key not in shown:
                    shown.add(key)
                    yield transition
            if reader is not None:
                yield from reader.unread()
            now = time.monotonic()
            if description["TrainingJobStatus"] in ENDED:
                ended = now if ended is None else ended
                if reader is None or now - ended >= min(_LONGEST_SETTLING, (ended - began) / 20):
                    return
            time.sleep(min(_LONGEST_POLL, max(_SHORTEST_POLL, (now - began) / 100)))

    def require_completed(self, description: DescribeTrainingJobResponseTypeDef) -> None:
        """Return if the job has completed.

        Args:
            description: What the API says about it at its end.

        Raises:
            TrainingJobFailed: The job failed.
            TrainingJobStopped: The job was stopped.
        """
        status, secondary = description["TrainingJobStatus"], description.get("SecondaryStatus", "")
        if status == "Completed":
            return
        kind, verb, unknown = TrainingJobFailed, "failed", "the platform gives no reason"
        if status == "Stopped":
            kind, verb, unknown = TrainingJobStopped, "was stopped", _STOPPED_BY.get(secondary, "it was stopped")
        reason = description.get("FailureReason", unknown)
        raise kind(
            f"{self.name} {verb} ({secondary or status}): {reason}{self._advice(status)}",
            job_name=self.name,
            status=status,
            secondary_status=secondary,
            reason=reason,
        )

    def _advice(self, status: str) -> str:  # noqa: ARG002 - other places know more
        """Say what to do about a job that did not complete."""
        return f"\nIts log: TrainingJob.attach({self.name!r}).logs(), or CloudWatch {LOG_GROUP}, {self.name}/algo-…"

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"
