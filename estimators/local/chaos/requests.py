"""How a request meets faults: it waits, or is refused in the form of its service."""

from __future__ import annotations

import time
from dataclasses import dataclass

from estimators.local.chaos.chaos import Chaos
from estimators.local.chaos.faults import RequestFault, ServerError, Slow, Throttle

PLATFORM_AGENT = "smddp-local-platform"
"""Part of the User-Agent of the platform's own requests. They meet no fault: faults are for users' programs."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ErrorResponse:
    """AWS's refusal of a request."""

    code: str
    message: str
    status: int
    """HTTP status."""


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
    """Delay a request as the faults that are set say, and return its refusal; None if it goes on.

    ``service`` is AWS's signing name; ``name`` is the operation, for S3 the method.
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
