"""What answers for a job when its handle asks: SageMaker's API, or the last description of a local job."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from estimators import api_retries
from estimators.errors import EstimatorError
from estimators.job_handle.events import ENDED
from estimators.log_reader import LOG_GROUP, LogReader
from smddp.process.interrupt import without_traceback

if TYPE_CHECKING:
    import boto3
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)


class SageMakerService:
    """The API of AWS, or of a local platform. Sends no request before it is asked."""

    keeps_log = True
    """Whether the log can be read after it was shown."""

    def __init__(self, name: str, session: Session | boto3.Session) -> None:
        """Point at a job by the SDK's session, or boto3's."""
        self._name = name
        self._session = session
        self._boto_session: Any = getattr(session, "boto_session", session)
        self._api: Any = getattr(session, "sagemaker_client", None) or self._boto_session.client("sagemaker")

    def describe(self) -> DescribeTrainingJobResponseTypeDef:
        """Return the API's full description of the job; raise EstimatorError if the job's local platform has ended."""
        with self._end_of_platform_told():
            described: DescribeTrainingJobResponseTypeDef = self._api.describe_training_job(TrainingJobName=self._name)
        return described

    @property
    def await_change(self) -> Callable[[int, float], None] | None:
        """The wait for more secondary statuses than a number, with a time limit in seconds; None on AWS."""
        wait: Callable[..., None] | None = getattr(self._boto_session, "await_change", None)
        return None if wait is None else partial(wait, self._name)

    def log(self, cancelled: Callable[[], bool] = lambda: False) -> LogReader:
        """Return a reader at the beginning of the job's log in CloudWatch."""
        return LogReader(self._boto_session.client("logs"), self._name, cancelled)

    def s3(self) -> Any:
        """Return an S3 client of the session."""
        return self._boto_session.client("s3")

    def check_resumable(self) -> None:
        """Do nothing: the API takes a job's description as another job's request."""

    def send(self, request: Mapping[str, Any]) -> SageMakerService:
        """Create another job, and return its service; raise EstimatorError as `create_training_job` does."""
        api_retries.create_training_job(self._api, request)
        return SageMakerService(request["TrainingJobName"], self._session)

    def stop(self) -> None:
        """Ask the platform to stop the job. Do nothing if the job has ended."""
        if self.describe()["TrainingJobStatus"] not in ENDED:
            self._api.stop_training_job(TrainingJobName=self._name)

    @contextmanager
    def leaving_told(self) -> Iterator[None]:
        """Log that the job continues, and how to wait again, if the block ends before the job."""
        try:
            with self._end_of_platform_told():
                yield
        except (KeyboardInterrupt, CancelledError) as interrupt:  # an interrupt cancels an awaiting cell of a notebook
            if not getattr(self._boto_session, "ends_with_block", False):
                self._tell_leaving("")
            if isinstance(interrupt, KeyboardInterrupt):
                without_traceback(interrupt)
            raise
        except Exception as error:
            if api_retries.is_about_asking(error):
                self._tell_leaving(f", but its status can't be read: {error}. Renew the credentials or the permissions")
            raise

    @contextmanager
    def _end_of_platform_told(self) -> Iterator[None]:
        """Turn the error of a request to a local platform that has ended into an EstimatorError that says so.

        Each method of a handle describes the job first, so `describe` and `leaving_told` are enough.
        """
        from botocore.exceptions import EndpointConnectionError

        try:
            yield
        except EndpointConnectionError as error:
            if not api_retries.has_no_server(error):
                raise
            raise EstimatorError(
                f"{self._name} can't be reached, because its local platform has ended ({error}). {self._after_the_end}"
            ) from error

    @property
    def _after_the_end(self) -> str:
        """What to do about a job whose local platform has ended."""
        if self._kept_in is not None:
            return (
                f"{self._kept_in} keeps its records, log and objects: start LocalSageMaker({self._kept_in!r}, "
                f"storage='disk'), and call TrainingJob.attach({self._name!r}, platform.session)."
            )
        if self._is_on_local_platform:
            return (
                "Use the job before that: inside the with block, or before stop(). LocalSageMaker(directory, "
                "storage='disk') keeps its records, log and objects for a later platform there."
            )
        return "Start the platform again (smddp local up)."

    def _tell_leaving(self, why: str) -> None:
        until, by_command = "without you", f", or: aws sagemaker stop-training-job --training-job-name {self._name}"
        if self._is_on_local_platform:
            until, by_command = "until its local platform ends", ""
        logger.warning(
            "%s continues %s%s. To stop it: TrainingJob.attach(%s).stop()%s. To wait again: "
            "TrainingJob.attach(%s).wait()",
            self._name,
            until,
            why,
            self._attached,
            by_command,
            self._attached,
        )

    @property
    def _is_on_local_platform(self) -> bool:
        """Whether the job, with its log, ends with a platform of this program."""
        return getattr(self._boto_session, "ends_with_program", False)

    @property
    def _kept_in(self) -> str | None:
        """The directory in which a later local platform finds the job again; None if there is none."""
        return getattr(self._boto_session, "kept_in", None)

    @property
    def _attached(self) -> str:
        """The arguments with which ``TrainingJob.attach`` finds the job, as the script of its Estimator has them."""
        return f"{self._name!r}, sagemaker_session" if self._is_on_local_platform else repr(self._name)

    def advice(self, status: str) -> str:  # noqa: ARG002 - as for a local job
        """Return where to find the log of a job that did not complete."""
        if not self._is_on_local_platform:
            stream = f"CloudWatch {LOG_GROUP}, {self._name}/algo-…"
            return f"\nIts log: TrainingJob.attach({self._attached}).logs(), or {stream}"
        until = "until its local platform ends. To keep them longer, use LocalSageMaker(directory, storage='disk')"
        if self._kept_in is not None:
            until = f"on this platform or a later LocalSageMaker({self._kept_in!r}, storage='disk')"
        return (
            f"\nIts log and output, with whole tracebacks: TrainingJob.attach({self._attached}) has .logs() and "
            f".download(directory), {until}"
        )


class EndedLocalJob:
    """The last description of a job of ``instance_type="local"``, which has ended."""

    keeps_log = False
    await_change = None

    def __init__(self, name: str, description: Mapping[str, Any], s3: Any = None) -> None:
        """Keep a description. `s3` is the client for the job's files; by default boto3's configuration decides."""
        self._name = name
        status = description["TrainingJobStatus"]
        self._description: Any = {"TrainingJobName": name, "SecondaryStatus": status, **description}
        self._s3 = s3

    def describe(self) -> DescribeTrainingJobResponseTypeDef:
        """Return the description, as DescribeTrainingJob gives it."""
        description: DescribeTrainingJobResponseTypeDef = self._description
        return description

    def log(self, cancelled: Callable[[], bool] = lambda: False) -> NoReturn:  # noqa: ARG002 - as for SageMaker
        """Raise EstimatorError: nothing keeps the log."""
        raise EstimatorError(
            f"{self._name} has no log: nothing keeps the log of a local job, and fit() has shown it. "
            "estimators.local.LocalSageMaker keeps it."
        )

    def s3(self) -> Any:
        """Return the client for the job's files."""
        return self._s3

    def check_resumable(self) -> NoReturn:
        """Raise EstimatorError: no API knows the job."""
        raise EstimatorError(f"{self._name} is a local job, which can't be sent again{self.how_to_resume}.")

    def send(self, request: Mapping[str, Any]) -> NoReturn:  # noqa: ARG002 - as for SageMaker
        """Raise EstimatorError, as `check_resumable` does."""
        self.check_resumable()

    def stop(self) -> None:
        """Do nothing: the job has ended."""

    def leaving_told(self) -> AbstractContextManager[None]:
        """Tell nothing: the job does not continue."""
        return nullcontext()

    def advice(self, status: str) -> str:
        """Return what the next ``fit()`` does, for a job that was stopped."""
        return self.how_to_resume if status == "Stopped" else ""

    @property
    def how_to_resume(self) -> str:
        """The effect of the next ``fit()``, as the end of a sentence."""
        if uri := self._description.get("CheckpointConfig", {}).get("S3Uri"):
            return f"; the next fit() resumes from the checkpoints in {uri}, if any"
        kept = "checkpoint_s3_uri='file:///directory' keeps them"
        return f"; it keeps no checkpoints, so the next fit() starts anew ({kept})"
