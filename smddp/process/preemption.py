"""A stop is not a failure: SIGTERM sets a flag, and training ends at the next step's boundary.

SageMaker (StopTrainingJob, a spot interruption), Slurm and Kubernetes all send SIGTERM and grant some time before
SIGKILL. The handler here only remembers that it came: no collective and no file is ever touched inside a signal
handler. Which step to stop at is agreed between the ranks elsewhere (``smddp.distributed.Agreement``).

``smddp.run`` watches for SIGTERM by itself. A loop of one's own does it so::

    from smddp.process.preemption import Stopped, stop_signal

    with stop_signal:
        for step, batch in enumerate(loader):
            ...
            if stop_signal.requested:
                checkpointer.save(step)
                raise Stopped
"""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

RESUMABLE = 75
"""The exit code of a job that stopped with its work saved: run it again and it goes on (EX_TEMPFAIL of sysexits.h)."""


class Stopped(SystemExit):
    """Training ended on request, after a checkpoint; left alone, it ends the process with exit code 75.

    It is a SystemExit, so that neither ``except Exception`` in a training script nor a missing ``smddp.run`` turns
    a stop into a failure.
    """

    def __init__(self) -> None:
        super().__init__(RESUMABLE)


class StopSignal:
    """Remembers that SIGTERM came, from when it is entered (``with``) until it is left.

    A second SIGTERM changes nothing: a checkpoint that is being written is written to its end.
    """

    def __init__(self) -> None:
        self.requested = False
        self._requested_at: float | None = None
        self._previous: Any = signal.SIG_DFL

    @property
    def age(self) -> float:
        """Seconds since a stop was requested; -1 if none was."""
        if not self.requested:
            return -1.0
        return 0.0 if self._requested_at is None else time.monotonic() - self._requested_at

    def __enter__(self) -> StopSignal:
        """Starts to watch.

        Raises:
            ValueError: Outside of the main thread, where Python allows no signal handlers.
        """
        self.requested, self._requested_at = False, None
        self._previous = signal.signal(signal.SIGTERM, self._request) or signal.SIG_DFL
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def _request(self, _signal_number: int, _frame: FrameType | None) -> None:
        if self._requested_at is None:
            self._requested_at = time.monotonic()  # the grace counts from the first
        self.requested = True


stop_signal = StopSignal()
"""The process's own: what ``smddp.run`` enters and ``smddp.Trainer`` obeys."""
