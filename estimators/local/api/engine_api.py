"""SageMaker's JSON protocol, as a thin layer on the engine: documents in, documents out, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from estimators.local.api.logs import EarlierLogs
from estimators.local.api.offered import require_target
from estimators.local.api.protocols import Answer, ApiRequest, document_answer
from estimators.local.chaos import Chaos, RequestFault, parse
from estimators.local.engine import ApiError
from estimators.local.engine.errors import invalid

INTERRUPT = "InterruptTrainingJob"
"""Our own operation, beside AWS's: reclaim a spot instance of a job."""
AWAIT_CHANGE = "AwaitChange"
"""Our own operation: answer once a job's status has changed, or after some seconds."""
SET_CHAOS = "SetChaos"
"""Our own operation: replace all faults of the platform by the faults in a text."""
DESCRIBE_CHAOS = "DescribeChaos"
"""Our own operation: list the faults that are set, and how often each has been met."""

MOST_SECONDS = 5.0
"""Longest wait for a job's change: less than the time in which a client expects an answer."""
_KINDS = (":training-job/", ":hyper-parameter-tuning-job/", ":processing-job/", ":experiment")
"""Parts of the ARNs of the engine's jobs, and of experiments, their trials and trial components."""
_TAGGING = frozenset({"AddTags", "ListTags", "DeleteTags"})


class TrainingJobs(EarlierLogs, Protocol):
    """The API's view of the engine."""

    @property
    def operations(self) -> frozenset[str]:
        """Names of the operations that `call` answers."""

    def call(self, operation: str, request: dict[str, Any], *, region: str) -> dict[str, Any]:
        """Answer one operation."""

    def interrupt(self, job_name: str) -> None:
        """Reclaim the job's spot instances."""

    def await_change(self, job_name: str, transitions: int, seconds: float) -> None:
        """Wait until a training job has more secondary statuses than ``transitions``, for ``seconds`` at most."""


class TrainingJobApi:
    """Answers the engine's operations, and the platform's own."""

    def __init__(self, engine: TrainingJobs, chaos: Chaos) -> None:
        self._engine = engine
        self._chaos = chaos
        self._own: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            INTERRUPT: self._interrupt,
            AWAIT_CHANGE: self._await_change,
            SET_CHAOS: self._set_chaos,
            DESCRIBE_CHAOS: self._describe_chaos,
        }

    def answers(self, request: ApiRequest) -> bool:
        """Return whether this class answers a request: one about the engine's jobs, or an operation of the platform."""
        of_engine = request.is_sagemakers and request.operation in self._engine.operations
        return request.is_own or (of_engine and _is_about_engine_job(request))

    def __call__(self, request: ApiRequest) -> Answer:
        """Answer a request `answers` accepts."""
        if request.is_own:
            return document_answer(self._call_own(request.operation, request.document))
        return document_answer(self._engine.call(request.operation, dict(request.document), region=request.region))

    def _call_own(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation not in self._own:
            raise ApiError(
                "UnknownOperationException", f"There is no operation {operation[:80]}; there is {', '.join(self._own)}."
            )
        return self._own[operation](request)

    def _interrupt(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._engine.interrupt(str(request.get("TrainingJobName")))
        return {}

    def _await_change(self, request: Mapping[str, Any]) -> dict[str, Any]:
        known, seconds = request.get("Transitions"), request.get("Seconds")
        if not isinstance(known, int) or not isinstance(seconds, int | float) or not 0 <= seconds <= MOST_SECONDS:
            raise invalid(f"Transitions is a number of statuses, and Seconds a time from 0 to {MOST_SECONDS:g}.")
        self._engine.await_change(str(request.get("TrainingJobName")), known, seconds)
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


def _is_about_engine_job(request: ApiRequest) -> bool:
    """Return whether a request is about a job of the engine; a request about tags may be about any resource."""
    arn = str(request.document.get("ResourceArn"))
    return request.operation not in _TAGGING or any(kind in arn for kind in _KINDS)
