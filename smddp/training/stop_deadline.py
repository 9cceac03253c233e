"""The end of a process that was told to stop and does not come to it: it evaluates, or waits for a rank that hangs.

A stop is heeded at a step's boundary. Where none is reached in time, SIGKILL would end the process without a reason.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from smddp.process.preemption import StopSignal

_POLL_SECONDS = 0.5


class StopDeadline:
    """Watches, in a thread, that a stop is heeded, and over in time.

    Args:
        stop_signal: What tells that, and when, a stop was asked for.
        seconds: How long it may take.
        late: Called in the thread once it takes longer; it ends the process.
    """

    def __init__(self, stop_signal: StopSignal, seconds: float, late: Callable[[], None]) -> None:
        self._stop_signal = stop_signal
        self._seconds = seconds
        self._late = late
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
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # whose handler ends it there
            if self._stop_signal.age > self._seconds:
                self._late()
                return


def main_thread_traceback() -> TracebackType | None:
    """Return where the main thread is now, as the traceback of an error that was raised there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001, it is documented
    outermost = None
    while frame is not None:
        outermost = TracebackType(outermost, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return outermost
