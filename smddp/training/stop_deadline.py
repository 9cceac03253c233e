"""How long a stop may take, and the end of a process that takes longer: it evaluates, or waits for a rank that hangs.

A stop takes effect between two steps. If none is reached in time, SIGKILL would end the process without a reason.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from smddp.process.preemption import StopSignal
from smddp.process.slurm_grace import seconds_left

logger = logging.getLogger(__name__)

STOP_SECONDS = 90.0
"""Bound in seconds, from SIGTERM until the last checkpoint is durable. SageMaker sends SIGKILL after 120 s, and the
report of a checkpoint that is not durable takes time, too."""

_PART_OF_GRACE = STOP_SECONDS / 120
"""The same fraction, for another grace period."""

LEAST_SECONDS = 10.0
"""Seconds that the last checkpoint gets in any case, even if the step during which SIGTERM came took most of them."""

_POLL_SECONDS = 0.5


def seconds_to_save(stop_age: float, *, knows_slurm: bool) -> float:
    """Return how long the last checkpoint may take, so many seconds after SIGTERM: ten seconds or more.

    On rank 0, which knows Slurm's deadline, it is at most three quarters of the time left.
    """
    seconds = STOP_SECONDS - stop_age
    if knows_slurm and (left := seconds_left(os.environ, since=stop_age)) is not None:
        logger.info("Slurm ends this job in %.0f s", left)
        seconds = min(seconds, _PART_OF_GRACE * left)
    return max(seconds, LEAST_SECONDS)


class StopDeadline:
    """Watch, in a thread, that a stop takes effect within so many seconds; else call ``late``, which ends the process.

    ``late`` is called in the thread.
    """

    def __init__(self, stop_signal: StopSignal, seconds: float, late: Callable[[], None]) -> None:
        self._stop_signal = stop_signal
        self._seconds = seconds
        self._late = late
        # `__exit__` sets it, and the watcher returns within half a second. The thread is never joined: it may be inside
        # ``late``, which does not return.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-deadline", daemon=True)

    def __enter__(self) -> StopDeadline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self._stop_signal.look()
            if self._stop_signal.is_unheeded:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # its handler ends the script
            if self._stop_signal.age > self._seconds:
                self._late()
                return


def main_thread_traceback() -> TracebackType | None:
    """Return the main thread's stack as a traceback, to report it with an error."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001, it is documented
    outermost = None
    while frame is not None:
        outermost = TracebackType(outermost, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return outermost
