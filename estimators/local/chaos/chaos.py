"""The faults that are set, and how often each has been met. Nothing is stored: the next platform has no faults."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from estimators.local.chaos.faults import Fault

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
        """Return the text of each fault that is set, and how often it has been met."""
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
