"""A request to AWS while a job is waited for: asked again for as long as AWS only says that it can't answer now.

Many programs that wait share the account's limits of requests a second. A waiting that ended with a ThrottlingException
would say nothing of the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from smddp.storage.s3_errors import Refusal

T = TypeVar("T")

_PATIENCE_SECONDS = 600.0
_THROTTLED = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"),
        *("TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException", "BandwidthLimitExceeded"),
    }
)
_TOO_MANY, _SERVER_ERROR = 429, 500
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


def _explain(error: Exception) -> Refusal:
    from botocore.exceptions import ClientError, ConnectionError, EndpointConnectionError, HTTPClientError  # noqa: A004

    from smddp.storage.s3_errors import Refusal, code_of

    message = f"AWS did not answer: {error}"
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        transient = code_of(error) in _THROTTLED or status == _TOO_MANY or status >= _SERVER_ERROR
        return Refusal(message=message, transient=transient)
    if isinstance(error, EndpointConnectionError):
        host = urlsplit(error.kwargs.get("endpoint_url", "")).hostname
        return Refusal(message=message, transient=host not in _THIS_MACHINE)
    return Refusal(message=message, transient=isinstance(error, (ConnectionError, HTTPClientError)))
