"""How a request meets faults: it waits, or is refused, in the words of the service that it was sent to."""

from __future__ import annotations

import time
from dataclasses import dataclass

from estimators.local.chaos.chaos import Chaos
from estimators.local.chaos.faults import RequestFault, ServerError, Slow, Throttle

PLATFORM_AGENT = "smddp-local-platform"
"""What the User-Agent of the platform's own requests has in it. They meet no fault: faults are for users' programs."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ErrorResponse:
    """How AWS would refuse the request."""

    code: str
    message: str
    status: int
    """Of HTTP."""


_THROTTLED = ErrorResponse(code="ThrottlingException", message="Rate exceeded", status=400)
_THROTTLED_BY = {
    "s3": ErrorResponse(code="SlowDown", message="Please reduce your request rate.", status=503),
    **dict.fromkeys(
        ("iam", "sts", "monitoring"), ErrorResponse(code="Throttling", message="Rate exceeded", status=400)
    ),
}
_FAILED = ErrorResponse(
    code="InternalFailure",
    message="The request processing has failed because of an unknown error, exception or failure.",
    status=500,
)
_FAILED_BY = {
    "s3": ErrorResponse(code="InternalError", message="We encountered an internal error. Please try again.", status=500)
}


def meet(chaos: Chaos, service: str, name: str, agent: str) -> ErrorResponse | None:
    """Let a request meet the faults that are set for it: wait for as long as one says.

    Args:
        chaos: What is set.
        service: Which one it is for, by AWS's name for signatures.
        name: The operation's name; for S3, the method.
        agent: Its User-Agent.

    Returns:
        How it is refused; None if it goes on.
    """
    if PLATFORM_AGENT in agent:
        return None
    who = f"{service}:{name}"
    targets = {service, who if service == "s3" else name}

    def fits(fault: RequestFault) -> bool:
        return fault.on in targets

    if slow := chaos.meet(Slow, who, fits):
        time.sleep(slow.seconds)
    if chaos.meet(Throttle, who, fits):
        return _THROTTLED_BY.get(service, _THROTTLED)
    if chaos.meet(ServerError, who, fits):
        return _FAILED_BY.get(service, _FAILED)
    return None
