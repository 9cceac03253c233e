"""The faults that are set, how often each has occurred, and how requests meet them.

A request waits, or is refused in the form of its service. Nothing is stored: the next platform has no faults.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from estimators.local.chaos.faults import Fault, RequestFault, ServerError, Slow, Throttle

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Fault)


class Chaos:
    """Faults that are set together; requests and jobs ask from any thread whether they meet one."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        # Guards `_faults`, and the count and random sequence of each: a fault is met no more often than it says. Held
        # for one pass over the faults; a slow request sleeps only after `meet` has returned.
        self._lock = threading.Lock()
        self._faults = [_Counted(fault) for fault in faults]

    def set(self, faults: Iterable[Fault]) -> None:
        """Replace all faults that are set; without faults, clear them."""
        counted = [_Counted(fault) for fault in faults]
        with self._lock:
            self._faults = counted
        logger.warning("[platform] chaos: %s", "; ".join(str(each.fault) for each in counted) or "no fault is set")

    @property
    def is_empty(self) -> bool:
        """Whether no fault is set."""
        return not self._faults

    def describe(self) -> list[tuple[str, int]]:
        """Return the text of each fault that is set, and how often it has occurred."""
        with self._lock:
            return [(str(each.fault), each.met) for each in self._faults]

    def meet(self, kind: type[F], who: str, fits: Callable[[F], bool] = lambda _: True) -> F | None:
        """Return and count the first fault of a kind that ``fits`` and is due now; None if no fault is due.

        ``who`` names the asker in the log.
        """
        with self._lock:
            for each in self._faults:
                fault = each.fault
                if isinstance(fault, kind) and fits(fault) and each.is_met():
                    logger.warning("[platform] chaos: %s is met by %s", fault, who)
                    return fault
        return None


class _Counted:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.met = 0
        self._chance = random.Random(fault.seed)  # noqa: S311 - to be repeated, and no secret

    def is_met(self) -> bool:
        if self.met >= self.fault.most:
            return False
        if self.fault.probability is not None and self._chance.random() >= self.fault.probability:
            return False
        self.met += 1
        return True


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


def meet_request_faults(chaos: Chaos, service: str, name: str, agent: str) -> ErrorResponse | None:
    """Delay a request by its faults, and return the request's refusal; None if it is not refused.

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
