"""SageMaker's JSON protocol over HTTP, as a thin layer on the engine: documents in, documents out, no decisions.

Requests about other records, or to other services, go on to the next application.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from estimators.local.api.front import DOCUMENT, OPERATION
from estimators.local.api.guard import REGION
from estimators.local.api.offered import require_target
from estimators.local.api.operation import ApiOperation
from estimators.local.chaos import Chaos, RequestFault, parse
from estimators.local.engine import ApiError
from estimators.local.engine.errors import invalid
from estimators.local.engine.validation import check_request

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

INTERRUPT = "InterruptTrainingJob"
"""Our own operation, beside AWS's: reclaim a spot instance of a job."""
SET_CHAOS = "SetChaos"
"""Our own operation: replace all faults that are set by those of a text."""
DESCRIBE_CHAOS = "DescribeChaos"
"""Our own operation: list the faults that are set, and how often each has been met."""

_KINDS = (":training-job/", ":hyper-parameter-tuning-job/", ":processing-job/", ":experiment")
"""Parts of the ARNs of the engine's jobs, and of experiments, their trials and trial components."""
_TAGGING = frozenset({"AddTags", "ListTags", "DeleteTags"})


class TrainingJobs(Protocol):
    """The API's view of the engine."""

    @property
    def operations(self) -> frozenset[str]:
        """Names of the operations that `call` answers."""

    def call(self, operation: str, request: dict[str, Any], *, region: str) -> dict[str, Any]:
        """Answer one operation."""

    def interrupt(self, job_name: str) -> None:
        """Reclaim the job's spot instances."""

    def bring_logs(self, group: str, streams: str) -> None:
        """Return once the earlier streams of a log group with this name prefix are restored."""

    def forget_logs(self, group: str, stream: str | None) -> None:
        """Forget an earlier stream of a log group, or all of them if ``stream`` is None."""


class TrainingJobApi:
    """A WSGI application that answers the engine's operations, and passes everything else on to `otherwise`."""

    def __init__(self, engine: TrainingJobs, otherwise: WSGIApplication, chaos: Chaos) -> None:
        self._engine = engine
        self._otherwise = otherwise
        self._chaos = chaos
        self._own: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            INTERRUPT: self._interrupt,
            SET_CHAOS: self._set_chaos,
            DESCRIBE_CHAOS: self._describe_chaos,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through; it turns the errors raised here into refusals."""
        operation: ApiOperation = environ[OPERATION]
        request = environ.get(DOCUMENT, {})
        if operation.is_own:
            return _answer(start_response, self._call_own(operation.name, request))
        if operation.is_sagemakers:
            if operation.name in self._engine.operations and _is_about_engine_job(operation.name, request):
                region = environ[REGION]
                return _answer(start_response, self._engine.call(operation.name, request, region=region))
            check_request(operation.name, request)
        return self._otherwise(environ, start_response)

    def _call_own(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation not in self._own:
            raise ApiError(
                "UnknownOperationException", f"There is no operation {operation[:80]}; there is {', '.join(self._own)}."
            )
        return self._own[operation](request)

    def _interrupt(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._engine.interrupt(str(request.get("TrainingJobName")))
        return {}

    def _set_chaos(self, request: Mapping[str, Any]) -> dict[str, Any]:
        text = request.get("Faults")
        if not isinstance(text, str):
            raise invalid("Faults is no text: give the faults to set, such as 'reclaim step=20', or '' for none.")
        try:
            faults = parse(text)
        except ValueError as error:
            raise invalid(f"Faults: {error}") from None
        for fault in faults:
            if isinstance(fault, RequestFault):
                require_target(fault.on)
        self._chaos.set(faults)
        return {}

    def _describe_chaos(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"Faults": [{"Fault": text, "Met": met} for text, met in self._chaos.describe()]}


def _is_about_engine_job(operation: str, request: Mapping[str, Any]) -> bool:
    """Return whether a request is about a job of the engine; a request about tags may be about any resource."""
    arn = str(request.get("ResourceArn"))
    return operation not in _TAGGING or any(kind in arn for kind in _KINDS)


def _answer(start_response: StartResponse, document: dict[str, Any]) -> Iterable[bytes]:
    content = json.dumps(document, default=_epoch_seconds).encode()
    headers = [
        ("Content-Type", "application/x-amz-json-1.1"),
        ("Content-Length", str(len(content))),
        ("x-amzn-RequestId", str(uuid.uuid4())),
    ]
    start_response("200 OK", headers)
    return [content]


def _epoch_seconds(value: object) -> float:
    """Return a time in the JSON protocol's form: seconds since 1970, rounded to the millisecond."""
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    raise TypeError(f"{type(value).__name__} has no form in the JSON protocol")
