"""Requests to AWS about a job: made again for as long as AWS only says that it can't answer now.

Many programs share the account's limits of requests a second. A waiting that ended with a ThrottlingException would say
nothing of the job, and a job that could not be sent for it would be sent by hand a minute later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

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
"""How wrong this machine's clock may be: with more, AWS refuses every signature."""
_COMPARED = ("HyperParameters", "RoleArn", "AlgorithmSpecification", "OutputDataConfig")
"""The members by which a job is known to be the one of a request: AWS shows them as they were given, or more."""
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


def ask(call: Callable[[], T], cancelled: Callable[[], bool] = lambda: False) -> T:
    """Call until it succeeds, after the retries of boto3's own, for ten minutes, with pauses that grow.

    Args:
        call: The request.
        cancelled: Whether nobody wants the answer any more, which ends a pause.

    Raises:
        smddp.storage.s3_retries.Cancelled: It was cancelled in a pause.
        botocore.exceptions.ClientError: AWS refuses the request itself, or throttles it for too long.
        botocore.exceptions.BotoCoreError: AWS can't be reached for too long, or a platform of this machine has ended.
    """
    from smddp.storage.s3_retries import Retries

    return Retries(_explain, seconds=_PATIENCE_SECONDS, cancelled=cancelled).ask(call)


async def ask_async(call: Callable[[], T]) -> T:
    """Call as `ask` does, in another thread, whose pauses end with the task: a program that ends waits for threads."""
    import asyncio

    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(ask, call, cancelled.is_set)
    finally:
        cancelled.set()


def create_training_job(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """Create a job, once, however often the request must be made.

    AWS gives a name to one job only. So a name that is in use after an attempt without an answer, ours or one of
    boto3's own, is no refusal if the job under it is the request's: that attempt made it.

    Args:
        sagemaker: boto3's client, or one like it.
        request: The CreateTrainingJob.

    Raises:
        botocore.exceptions.ClientError: AWS refuses the request itself, or throttles it for too long.
        botocore.exceptions.BotoCoreError: AWS can't be reached, or does not answer for too long.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from smddp.storage.s3_errors import code_of
    from smddp.storage.s3_retries import Retries

    began, unanswered = datetime.now(timezone.utc), False

    def call() -> None:
        nonlocal unanswered
        try:
            sagemaker.create_training_job(**request)
        except (ClientError, BotoCoreError) as error:
            unanswered = unanswered or _may_have_been_done(error)
            if not (unanswered and code_of(error) == _IN_USE and _is_made(sagemaker, request, began)):
                raise
            logger.warning("%s was started by an attempt that AWS did not answer", request["TrainingJobName"])

    Retries(_explain_sending, seconds=_PATIENCE_SECONDS).ask(call)


def _may_have_been_done(error: Exception) -> bool:
    """Return whether a request that failed, or one of boto3's before it, may have had its effect all the same."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return True
    metadata = error.response.get("ResponseMetadata", {})
    return metadata.get("HTTPStatusCode", 0) >= _SERVER_ERROR or metadata.get("RetryAttempts", 0) > 0


def _is_made(sagemaker: Any, request: Mapping[str, Any], began: datetime) -> bool:
    """Return whether the job that has the request's name is the request's."""
    job = ask(lambda: sagemaker.describe_training_job(TrainingJobName=request["TrainingJobName"]))
    same = all(_is_part(request[name], job.get(name)) for name in _COMPARED if request.get(name))
    return same and job["CreationTime"] >= began - _CLOCK_ERROR


def _is_part(given: Any, shown: Any) -> bool:
    if isinstance(given, Mapping) and isinstance(shown, Mapping):
        return all(_is_part(value, shown.get(name)) for name, value in given.items())
    return bool(given == shown)


def is_about_asking(error: Exception) -> bool:
    """Return whether an error says nothing of the job: it is of credentials, rights, limits or the network."""
    from botocore.exceptions import BotoCoreError, ClientError

    from smddp.storage.s3_errors import code_of

    if isinstance(error, ClientError):
        return code_of(error) not in _NO_SUCH_JOB
    return isinstance(error, BotoCoreError) and not _has_no_server(error)


def _has_no_server(error: Exception) -> bool:
    """Return whether nothing listens on this machine: the platform has ended."""
    from botocore.exceptions import EndpointConnectionError

    if not isinstance(error, EndpointConnectionError):
        return False
    return urlsplit(error.kwargs.get("endpoint_url", "")).hostname in _THIS_MACHINE


def _explain_sending(error: Exception) -> Refusal:
    """As `_explain`; but an endpoint that can't be reached is most often a mistake in it."""
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
    return Refusal(message=message, transient=unreachable and not _has_no_server(error))
