"""`TrainingJob`: a handle on a sent job. It keeps no state: the job's name is enough to make a new one."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from estimators import api_retries
from estimators.errors import EstimatorError
from estimators.job_handle.events import ENDED, JobEvent, StatusChange, require_completed
from estimators.job_handle.service import EndedLocalJob, SageMakerService
from estimators.log_reader import LogLine

if TYPE_CHECKING:
    import boto3
    import pandas
    from matplotlib.figure import Figure
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.job_handle.events import OnEvent
    from estimators.job_handle.files import JobFiles
    from estimators.job_handle.follower import Follower
    from estimators.sdk.library import Session
    from smddp.checkpoint import CheckpointInfo
    from smddp.goodput import Account

logger = logging.getLogger(__name__)


class TrainingJob:
    """One training job, running or ended.

    Examples:
        Attach to a job by its name:

            job = TrainingJob.attach("run-7", sagemaker_session)
            job.wait()  # shows the log; raises TrainingJobFailed with the FailureReason
            print(job.status, job.model_data)
    """

    def __init__(self, name: str, session: Session | boto3.Session | SageMakerService | EndedLocalJob) -> None:
        """Point at a job. Sends no request.

        Args:
            name: The job's name.
            session: Where the job is: the SDK's session, or boto3's.
        """
        self.name = name
        """The job's name."""
        self._service = (
            session if isinstance(session, SageMakerService | EndedLocalJob) else SageMakerService(name, session)
        )

    @classmethod
    def attach(cls, name: str, session: Session | boto3.Session | None = None) -> TrainingJob:
        """Return a handle on an existing job, sent by anyone.

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
        """Return the API's full description of the job (DescribeTrainingJob).

        Raises:
            EstimatorError: The job's local platform has ended.
            botocore.exceptions.ClientError: AWS refuses the request.
            botocore.exceptions.BotoCoreError: AWS can't be reached.
        """
        return self._service.describe()

    @property
    def arn(self) -> str:
        """The job's Amazon Resource Name."""
        return self.describe()["TrainingJobArn"]

    @property
    def status(self) -> str:
        """InProgress or Stopping; finally Completed, Failed or Stopped."""
        return self.describe()["TrainingJobStatus"]

    @property
    def secondary_status(self) -> str:
        """The finer status, such as Starting, Downloading, Training, Interrupted, MaxRuntimeExceeded."""
        return self.describe()["SecondaryStatus"]

    @property
    def model_data(self) -> str:
        """The S3 URI of the model archive.

        Raises:
            EstimatorError: The job has no model (yet).
        """
        from estimators.job_handle import files

        description = self.describe()
        if (uri := files.model_uri(description)) is None:
            raise EstimatorError(f"{self.name} has no model: it is {description['TrainingJobStatus']}.")
        return uri

    @property
    def checkpoint_s3_uri(self) -> str | None:
        """The S3 prefix of the checkpoints, or None if the job keeps none."""
        return self.describe().get("CheckpointConfig", {}).get("S3Uri")

    def final_metrics(self) -> dict[str, float]:
        """Return the last value of each metric, from the job's description."""
        from estimators.job_handle.summary import FinalMetrics

        return FinalMetrics.of(self.describe())

    def metrics(self) -> pandas.DataFrame:
        """Return all values so far that the job's metric definitions find in its log.

        Returns:
            One row for each value, in the order of time: ``time`` (UTC), ``host``, ``step`` and ``epoch`` (from the
            same line; NA if absent), ``metric``, ``value``. The metrics ``step`` and ``epoch`` have no rows of their
            own.

        Raises:
            EstimatorError: pandas is not installed; or the job is a local one, whose log is not kept.

        Examples:
            Mean loss of each epoch:

                frame = job.metrics()
                losses = frame[frame.metric == "loss"].groupby("epoch").value.mean()
        """
        from estimators.job_handle.metrics import MetricReader, table

        with closing(MetricReader.of(self.describe())) as reader:
            return table(value for line in self._service.log().unread() for value in reader.values(line))

    def plot(self, *metrics: str) -> Figure:
        """Draw the job's metrics over its steps, and mark each resume after an interruption or a restart.

        Args:
            *metrics: Names of the metrics; by default all.

        Returns:
            A matplotlib figure, which a notebook shows as a picture: ``job.plot("loss").savefig("loss.png")``.

        Raises:
            EstimatorError: The job has no such metric, or none yet; or pandas or matplotlib is not installed.
        """
        from estimators.job_handle.metrics import attempts_begun, required

        required("matplotlib", "plot()", "pip install matplotlib")
        from estimators.job_handle.plot import plot

        transitions = self.describe().get("SecondaryStatusTransitions", [])
        begun = attempts_begun([StatusChange.of(transition) for transition in transitions])
        return plot(self.metrics(), metrics, begun, self.name)

    def checkpoints(self, *, deep: bool = False) -> list[CheckpointInfo]:
        """Return the checkpoints under the job's checkpoint prefix, oldest first, each with its problem, if any.

        Some may come from an earlier job from which this one resumed.

        Args:
            deep: Read and verify every byte. Otherwise only the manifests and the sizes of files are checked.

        Raises:
            EstimatorError: The job keeps no checkpoints.
            StoreError: S3 can't be read.
        """
        from estimators.job_handle import files

        return files.list_checkpoints(files.checkpoints_uri(self.name, self.describe()), self._service.s3(), deep=deep)

    def goodput(self) -> Account:
        """Return what the wall time of the job's run was: training, waits, lost work; over all its attempts.

        It is read from the ledger that a `smddp.Trainer` keeps beside the checkpoints. Attempts of earlier jobs, from
        which this one resumed, count, too. Without a ledger the account has no attempts.

        Raises:
            EstimatorError: The job keeps no checkpoints.
            StoreError: S3 can't be read.

        Examples:
            After a job with ``checkpoint_s3_uri``:

                account = job.goodput()
                print(f"{account.goodput:.0%} of {account.wall_seconds:.0f} s, {account.lost_steps} steps lost")
        """
        from estimators.job_handle import files

        return files.read_goodput(files.checkpoints_uri(self.name, self.describe()), self._service.s3())

    def download(
        self, directory: str | os.PathLike[str], *, only: Literal["model", "output"] | None = None
    ) -> JobFiles:
        """Download the job's model and output, unpacked.

        Args:
            directory: The parent of the directories ``model`` and ``output``; created if missing.
            only: Download only this one; by default both.

        Raises:
            EstimatorError: The job has no model or output (yet), a target directory is not empty, or an archive is
                damaged or unsafe.
        """
        from estimators.job_handle import files

        return files.download(self._service.s3(), self.describe(), Path(directory), only=only)

    def resume(
        self,
        *,
        hyperparameters: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        max_run: int | None = None,
        max_wait: int | None = None,
        use_spot_instances: bool | None = None,
        job_name: str | None = None,
    ) -> TrainingJob:
        """Start a job that resumes from this one's newest checkpoint: the same code, image and channels, with changes.

        With the Estimator at hand, its next ``fit()`` with the same ``checkpoint_s3_uri`` resumes, too, with the
        current code. Tags are not copied.

        Args:
            hyperparameters: Hyperparameters to change, such as ``{"epochs": 20}``; a value of None removes one.
            environment: Environment variables to change or add.
            instance_type: The type of the hosts.
            instance_count: Number of hosts.
            max_run: Seconds that the new job may train.
            max_wait: Seconds that it may take, including the wait for instances; for spot jobs.
            use_spot_instances: Whether it uses spare capacity.
            job_name: The new job's name; by default this job's, with the current time.

        Returns:
            The new job. It has started; call ``wait()`` to wait for its end.

        Raises:
            EstimatorError: The job has not ended, has no valid checkpoint, or does not allow a change; or AWS refused
                the new job, or did not answer.
            StoreError: The checkpoints in S3 can't be read.
        """
        from estimators.job_handle import files
        from estimators.job_handle.resumed_request import Changes, new_name, resumed_request

        self._service.check_resumable()
        description = self.describe()
        uri = files.checkpoints_uri(self.name, description)
        if (status := description["TrainingJobStatus"]) not in ENDED:
            raise EstimatorError(
                f"{self.name} is {status}, and two jobs can't write to {uri}. Call stop() and wait() first."
            )
        changes = Changes(
            hyperparameters=hyperparameters,
            environment=environment,
            instance_type=instance_type,
            instance_count=instance_count,
            max_run=max_run,
            max_wait=max_wait,
            use_spot_instances=use_spot_instances,
        )
        name = job_name or new_name(self.name)
        request = resumed_request(description, changes, name)
        files.require_checkpoint(uri, self._service.s3())
        started = self._service.send(request)
        logger.info("started training job %s, which resumes from %s", name, self.name)
        return TrainingJob(name, started)

    def stop(self) -> None:
        """Ask the platform to stop the job: SIGTERM, 120 s to save, SIGKILL. Do nothing if the job has ended."""
        self._service.stop()

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of host and line from the log's beginning, until the job has ended and its log is read."""
        return ((line.host, line.message) for line in self.lines())

    def lines(self) -> Iterator[LogLine]:
        """Yield the log as `logs` does, each line with its time."""
        with self._service.leaving_told():
            for event in self._follower().events():
                if isinstance(event, LogLine):
                    yield event

    def events(self) -> Iterator[JobEvent]:
        """Yield all events of the job from its beginning, until it has ended and its log is read.

        Returns:
            `StatusChange`, `LogLine` and `MetricValue` objects. The values in a line follow it immediately.

        Examples:
            Stop a job whose loss is too high:

                for event in job.events():
                    match event:
                        case MetricValue(metric="loss", value=loss) if loss > 10:
                            job.stop()
        """
        with self._service.leaving_told():
            yield from self._follower(with_values=True).events()

    def wait(self, logs: bool = True, *, on_event: OnEvent | None = None) -> None:
        """Wait for the job's end. Ctrl-C ends the wait, not the job; a job on a local platform ends with the platform.

        Args:
            logs: Whether to show the job's name, its log, and its changes of status, on stdout.
            on_event: A function that receives each of `events`, or a shell command that runs at each change of status,
                with the event as JSON on its standard input. A failure of either is logged as a warning, and the wait
                continues.

        Raises:
            TrainingJobFailed: The job failed.
            TrainingJobStopped: The job was stopped.
        """
        from estimators.job_handle.events import Listener
        from estimators.job_handle.view import is_live, shown

        logs = logs and self._service.keeps_log
        live = self._hyperparameters if logs and is_live() else None
        with self._service.leaving_told(), ExitStack() as stack:
            told: list[Callable[[JobEvent], object]] = []
            if on_event is not None:
                told.append(Listener(on_event, self.name).tell)
            if logs:
                told.append(stack.enter_context(shown(self.name, live)))
            wants_values = live is not None or callable(on_event)
            for event in self._follower(with_lines=logs or wants_values, with_values=wants_values).events():
                for tell in told:
                    tell(event)
            description = api_retries.ask(self.describe)
        self.require_completed(description)

    async def wait_async(self, *, on_event: OnEvent | None = None) -> None:
        """Wait for the job's end without blocking the event loop. Shows nothing.

        Args:
            on_event: A function or shell command that receives the events, as for `wait`.

        Raises:
            TrainingJobFailed: The job failed.
            TrainingJobStopped: The job was stopped.
        """
        import asyncio

        from estimators.job_handle.events import Listener

        listener = None if on_event is None else Listener(on_event, self.name)
        wants_all = callable(on_event)
        with self._service.leaving_told():
            async for event in self._follower(with_lines=wants_all, with_values=wants_all).events_async():
                if listener is not None:
                    await asyncio.to_thread(listener.tell, event)
            description = await api_retries.ask_async(self.describe)
        self.require_completed(description)

    async def events_async(self) -> AsyncIterator[JobEvent]:
        """Yield what `events` yields, without blocking the event loop: ``async for event in job.events_async()``."""
        with self._service.leaving_told():
            async for event in self._follower(with_values=True).events_async():
                yield event

    def _follower(self, *, with_lines: bool = True, with_values: bool = False) -> Follower:
        from estimators.job_handle.follower import Follower

        return Follower(
            self.describe,
            self._service.log if with_lines else None,
            with_values=with_values,
            await_change=self._service.await_change,
        )

    def _hyperparameters(self) -> Mapping[str, str]:
        return self.describe().get("HyperParameters", {})

    def require_completed(self, description: DescribeTrainingJobResponseTypeDef) -> None:
        """Raise if the job has failed or was stopped.

        Args:
            description: The job's description, from after its end.

        Raises:
            TrainingJobFailed: The job failed.
            TrainingJobStopped: The job was stopped.
        """
        require_completed(self.name, description, self._service.advice)

    def _repr_html_(self) -> str:
        """Return the job's state for a notebook, or its name and why AWS does not tell the state."""
        from botocore.exceptions import BotoCoreError, ClientError

        from estimators.job_handle import summary
        from smddp.process import notebook_html

        try:
            return summary.job_html(self.name, self.describe())
        except (BotoCoreError, ClientError, EstimatorError) as error:
            return notebook_html.title(self.name, f"the state can't be read: {error}")

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"
