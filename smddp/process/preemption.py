"""A stop is not a failure: SIGTERM sets a flag, and training ends at the next step's boundary.

SageMaker (StopTrainingJob, a spot interruption), Slurm and Kubernetes all send SIGTERM and grant some time before
SIGKILL. ``sbatch --signal=USR1@120`` sends SIGUSR1, or USR2, before the time is up, and that is a stop too. The handler
here only remembers that it came: no collective and no file is ever touched inside a signal handler. Which step to stop
at is agreed between the ranks elsewhere (``smddp.distributed.Agreement``).

``smddp.run`` watches for these signals. A loop of one's own asks ``job.stopping``, on all ranks at the same points::

    for step, batch in enumerate(loader):
        ...
        if job.stopping:
            checkpointer.save(step)
            checkpointer.wait()
            raise smddp.Stopped
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from smddp.process.exit_codes import RESUMABLE

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""A stop to a script that has no handler of its own for them; launchers pass them on, as none of their business."""

STOP_SIGNALS = (signal.SIGTERM, *USER_SIGNALS)
"""What asks for a stop under ``smddp.run``."""

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What asks for a stop above ``smddp.run``: launchers and containers forward them to the ranks."""


class Stopped(SystemExit):
    """Training ended on request, after a checkpoint; left alone, it ends the process with exit code 75.

    It is a SystemExit, so that neither ``except Exception`` in a training script nor a missing ``smddp.run`` turns
    a stop into a failure.
    """

    def __init__(self) -> None:
        super().__init__(RESUMABLE)


class StopSignal:
    """Remembers that a stop was asked for by a signal, from when it is entered (``with``) until it is left.

    A second SIGTERM changes nothing: a checkpoint that is being written is written to its end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.heeded = False
        """Whether something asks ``requested`` from time to time, and will end the process in good order."""
        self.on_unheeded: Callable[[], None] | None = None
        """Called by a signal that comes ``patience`` seconds after the first one, or later, if nothing heeds it yet;
        it raises what the main thread shall end with."""
        self.patience = 20.0
        self._requested_at: float | None = None
        self._previous: dict[int, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._previous_wakeup = -1

    @property
    def age(self) -> float:
        """Seconds since a stop was requested; -1 if none was."""
        if not self.requested:
            return -1.0
        return 0.0 if self._requested_at is None else time.monotonic() - self._requested_at

    @property
    def is_unheeded(self) -> bool:
        """Whether a stop was requested, and nothing has begun to ask for it in all the time that it had."""
        return not self.heeded and self.age >= self.patience

    def __enter__(self) -> StopSignal:
        """Start to watch.

        Raises:
            ValueError: Outside of the main thread, where Python allows no signal handlers.
        """
        self.requested, self._requested_at, self.heeded = False, None, False
        # Python writes each signal's number there at once, even while the main thread is in C and runs no handler.
        self._sockets = socket.socketpair()
        for each in self._sockets:
            each.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number, previous in self._previous.items():
            if number == signal.SIGTERM or previous == signal.SIG_DFL:  # others may have a meaning of the user's
                signal.signal(number, self._request)
        return self

    def watch_again(self) -> None:
        """Take SIGTERM back from a library that has put a handler of its own in place; in the main thread."""
        assert self._sockets is not None, "nothing watches for signals: use smddp.run"
        signal.signal(signal.SIGTERM, self._request)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._sockets is not None
        if (wakeup := signal.set_wakeup_fd(self._previous_wakeup)) != self._sockets[1].fileno():
            signal.set_wakeup_fd(wakeup)  # somebody else's, such as asyncio's
        sockets, self._sockets = self._sockets, None
        for each in sockets:
            each.close()
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._request:  # else somebody chose what comes after
                signal.signal(number, previous or signal.SIG_DFL)

    def look(self) -> None:
        """Note signals that came while the main thread could not; for a thread that looks from time to time."""
        sockets = self._sockets
        try:
            numbers = sockets[0].recv(4096) if sockets is not None else b""
        except OSError:  # none came, or it is over
            return
        if any(number in STOP_SIGNALS and signal.getsignal(number) == self._request for number in numbers):
            self._note()

    def _note(self) -> None:
        if self._requested_at is None:
            self._requested_at = time.monotonic()  # the grace counts from the first
        self.requested = True

    def _request(self, _signal_number: int, _frame: FrameType | None) -> None:
        self._note()
        if self.is_unheeded and self.on_unheeded is not None:
            self.heeded = True  # a second signal must not disturb the end
            self.on_unheeded()


stop_signal = StopSignal()
"""The process's own: what ``smddp.run`` enters and ``smddp.Trainer`` obeys."""
