"""Send requests to AWS about a job: retry while AWS only says that it can't answer now, and explain a refusal.

Many programs share the account's limit of requests a second. One ThrottlingException says nothing about the job, so it
must neither end a wait nor keep a job from being sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from estimators.errors import EstimatorError, not_sent

if TYPE_CHECKING:
    from smddp.storage.s3_errors import Refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_SECONDS = 600.0
_THROTTLED = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"),
        *("TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException", "BandwidthLimitExceeded"),
    }
)
_TOO_MANY, _SERVER_ERROR = 429, 500
_IN_USE = "ResourceInUse"
_NO_SUCH_JOB = frozenset({"ValidationException", "ResourceNotFound", "ResourceNotFoundException"})
_CLOCK_ERROR = timedelta(minutes=5)
"""Largest error of this machine's clock: beyond it, AWS refuses every signature."""
_COMPARED = ("HyperParameters", "RoleArn", "AlgorithmSpecification", "OutputDataConfig")
"""The request members that identify a job. AWS returns each as it was sent, or with more keys."""
_REMEDIES = {
    _IN_USE: "no two jobs of an account and region have one name: give another job_name, or leave it out",
    "ResourceLimitExceeded": "use fewer instances or another instance_type, or let Service Quotas of AWS raise a quota",
    "AccessDeniedException": "let your user start training jobs and pass the role: smddp plan --iam has the policy",
}
"""What to do about a refusal, by AWS's code; of another one, the user corrects what AWS's message names."""
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


def ask(call: Callable[[], T], cancelled: Callable[[], bool] = lambda: False) -> T:
    """Call until it succeeds or `cancelled` returns True: at most ten minutes, with growing pauses.

    boto3's own retries come first. Raise Cancelled in a pause, or botocore's last error: a refusal, throttling or an
    outage of more than ten minutes, or a local platform that has ended.
    """
    from smddp.storage.s3_errors import Retries

    return Retries(_explain, seconds=_PATIENCE_SECONDS, cancelled=cancelled).ask(call)


async def ask_async(call: Callable[[], T]) -> T:
    """Call as `ask` does, in another thread. Its pauses end with the task, because Python's exit waits for threads."""
    import asyncio

    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(ask, call, cancelled.is_set)
    finally:
        cancelled.set()


def create_training_job(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """Create a job exactly once, however often the request is repeated.

    Raise EstimatorError if AWS refuses the job or does not answer, or if its credentials are missing.

    1. A job's name is unique in an account and region, so a repeated request can't create a second job.
    2. An attempt that AWS did not answer may have created the job. boto3's own retries are attempts, too.
    3. ResourceInUse after an unanswered attempt is a success if the existing job matches the request.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from smddp.storage.s3_errors import Retries, code_of

    name, began, unanswered = request["TrainingJobName"], datetime.now(timezone.utc), False

    def call() -> None:
        nonlocal unanswered
        try:
            sagemaker.create_training_job(**request)
        except (ClientError, BotoCoreError) as error:
            unanswered = unanswered or _may_have_been_done(error)
            if not (unanswered and code_of(error) == _IN_USE and _is_made(sagemaker, request, began)):
                raise
            logger.warning("%s was started by an attempt that AWS did not answer", name)

    try:
        with credentials_explained():
            Retries(_explain_sending, seconds=_PATIENCE_SECONDS).ask(call)
    except (ClientError, BotoCoreError) as error:
        raise _not_started(name, error) from error


def _not_started(name: str, error: Exception) -> EstimatorError:
    """Return AWS's reason not to start a job, or that AWS did not answer, and what to do."""
    from botocore.exceptions import ClientError, ParamValidationError

    from smddp.storage.s3_errors import explain

    if isinstance(error, ParamValidationError):
        return EstimatorError(f"{name} was not started: {error}\nCorrect what it names.")
    if has_no_server(error):
        return _unasked(error)
    refused = isinstance(error, ClientError) and error.operation_name == "CreateTrainingJob"
    if refused and not _explain(error).transient:
        return EstimatorError(f"{explain(f'{name} was not started', error, _REMEDIES).message}.")
    return EstimatorError(
        f"AWS did not answer the request to start {name}: {error}. Check the network and the region. An attempt may "
        f"have started it: look for it by TrainingJob.attach({name!r}) before you send it again."
    )


@contextmanager
def credentials_explained() -> Iterator[None]:
    """Turn boto3's errors about missing or unreadable AWS credentials into an EstimatorError that says what to do."""
    from botocore.exceptions import (
        CredentialRetrievalError,
        NoCredentialsError,
        PartialCredentialsError,
        TokenRetrievalError,
    )

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError) as fault:
        raise not_sent(
            f"AWS can't be asked: {fault}",
            "Sign in (aws configure, or aws sso login), or train on this machine: give the session of "
            "LocalSageMaker().",
        ) from None  # the message has all that the fault says; its frames are those of botocore


@contextmanager
def errors_explained() -> Iterator[None]:
    """Turn each error of boto3, before a job is sent, into an EstimatorError that says what to do.

    The checks, the SDK and the upload meet AWS in many places. A place may explain a refusal better. Errors of the
    credentials, the configuration and the network can come in every place, and are explained here.
    """
    from boto3.exceptions import Boto3Error

    from smddp.storage.s3_errors import S3_ERRORS

    try:
        with credentials_explained():
            yield
    except (*S3_ERRORS, Boto3Error) as fault:
        raise _unasked(fault) from fault


def _unasked(error: Exception) -> EstimatorError:
    """Return the error of a job that was not sent because of boto3's error, which is not about the credentials."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, ParamValidationError  # noqa: A004
    from urllib3.exceptions import HTTPError

    from smddp.storage.s3_errors import explain

    if isinstance(error, ClientError):
        return EstimatorError(f"{explain('The job was not sent', error, _REMEDIES).message}.")
    if has_no_server(error):
        remedy = "The local platform of the session has ended: start one, and give its session."
    elif isinstance(error, (ConnectionError, HTTPClientError, HTTPError)):
        remedy = "Check the network, the region, and AWS_ENDPOINT_URL if it is set."
    elif isinstance(error, ParamValidationError):
        remedy = "Correct what it names."
    else:
        remedy = "Correct the configuration of AWS."
    return not_sent(f"AWS can't be asked: {error}", remedy)


def _may_have_been_done(error: Exception) -> bool:
    """Return whether a failed request, or a retry of boto3's before it, may have taken effect."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return True
    metadata = error.response.get("ResponseMetadata", {})
    return metadata.get("HTTPStatusCode", 0) >= _SERVER_ERROR or metadata.get("RetryAttempts", 0) > 0


def _is_made(sagemaker: Any, request: Mapping[str, Any], began: datetime) -> bool:
    """Return whether the job with the request's name was created by this request."""
    job = ask(lambda: sagemaker.describe_training_job(TrainingJobName=request["TrainingJobName"]))
    same = all(_is_part(request[name], job.get(name)) for name in _COMPARED if request.get(name))
    return same and job["CreationTime"] >= began - _CLOCK_ERROR


def _is_part(given: Any, shown: Any) -> bool:
    if isinstance(given, Mapping) and isinstance(shown, Mapping):
        return all(_is_part(value, shown.get(name)) for name, value in given.items())
    return bool(given == shown)


def is_about_asking(error: Exception) -> bool:
    """Return whether an error concerns credentials, rights, limits or the network, and says nothing about the job."""
    from botocore.exceptions import BotoCoreError, ClientError

    from smddp.storage.s3_errors import code_of

    if isinstance(error, ClientError):
        return code_of(error) not in _NO_SUCH_JOB
    return isinstance(error, BotoCoreError)


def has_no_server(error: Exception) -> bool:
    """Return whether the endpoint is on this machine and nothing listens there: the local platform has ended."""
    from botocore.exceptions import EndpointConnectionError

    if not isinstance(error, EndpointConnectionError):
        return False
    return urlsplit(error.kwargs.get("endpoint_url", "")).hostname in _THIS_MACHINE


def _explain_sending(error: Exception) -> Refusal:
    """Explain as `_explain` does, but do not retry an unreachable endpoint: its address is most likely wrong."""
    from botocore.exceptions import EndpointConnectionError

    refusal = _explain(error)
    return replace(refusal, transient=refusal.transient and not isinstance(error, EndpointConnectionError))


def _explain(error: Exception) -> Refusal:
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError  # noqa: A004

    from smddp.storage.s3_errors import Refusal, code_of

    message = f"AWS did not answer: {error}"
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        transient = code_of(error) in _THROTTLED or status == _TOO_MANY or status >= _SERVER_ERROR
        return Refusal(message=message, transient=transient)
    unreachable = isinstance(error, (ConnectionError, HTTPClientError))
    return Refusal(message=message, transient=unreachable and not has_no_server(error))
