"""A stop is not a failure: SIGTERM sets a flag, and training ends after the current step.

SageMaker (StopTrainingJob, a spot interruption), Slurm and Kubernetes all send SIGTERM and grant some time before
SIGKILL. ``sbatch --signal=USR1@120`` sends SIGUSR1 or SIGUSR2 before the time limit, which is a stop, too. The signal
handler only sets a flag: it runs no collective and writes no file. The ranks agree on the step to stop at elsewhere
(``smddp.distributed.Agreement``).

``smddp.run`` watches for these signals. A custom loop reads ``job.stopping``, on all ranks at the same points:

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
"""Signals that stop a script without its own handlers for them. Launchers pass them on, and ignore them themselves."""

STOP_SIGNALS = (signal.SIGTERM, *USER_SIGNALS)
"""Signals that request a stop under ``smddp.run``."""

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that request a stop above ``smddp.run``: launchers and containers forward them to the ranks."""


class Stopped(SystemExit):
    """Training stopped on request, after a checkpoint. If not caught, it ends the process with exit code 75.

    It is a SystemExit, so that neither ``except Exception`` in a training script nor a missing ``smddp.run`` turns
    a stop into a failure.
    """

    def __init__(self) -> None:
        super().__init__(RESUMABLE)


class StopSignal:
    """Records a stop's signal inside its ``with`` block.

    A second SIGTERM changes nothing: a checkpoint in progress is completed.
    """

    def __init__(self) -> None:
        self.requested = False
        self.heeded = False
        """Whether some code polls ``requested``, and will end the process properly."""
        self.on_unheeded: Callable[[], None] | None = None
        """Raises the exception that ends the main thread. A signal calls it if ``patience`` seconds have passed since
        the first one, and no code has ever polled ``requested``."""
        self.patience = 20.0
        self._requested_at: float | None = None
        self._previous: dict[int, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._previous_wakeup = -1

    @property
    def age(self) -> float:
        """Seconds since the first request for a stop; -1 without a request."""
        if not self.requested:
            return -1.0
        return 0.0 if self._requested_at is None else time.monotonic() - self._requested_at

    @property
    def is_unheeded(self) -> bool:
        """Whether a stop was requested ``patience`` seconds ago, and no code polls ``requested`` yet."""
        return not self.heeded and self.age >= self.patience

    def __enter__(self) -> StopSignal:
        """Install the signal handlers. Raise ValueError outside of the main thread."""
        self.requested, self._requested_at, self.heeded = False, None, False
        # Python's C handler writes each signal's number to this socket at once, even while the main thread is in C code
        # and runs no Python handler. `look` reads it from another thread.
        self._sockets = socket.socketpair()
        for each in self._sockets:
            each.setblocking(False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # a parent may have left it blocked
        self._previous_wakeup = signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number, previous in self._previous.items():
            if (
                number == signal.SIGTERM or previous == signal.SIG_DFL
            ):  # keep the user's own handlers for SIGUSR1 and SIGUSR2
                signal.signal(number, self._request)
        return self

    def watch_again(self) -> None:
        """Restore our SIGTERM handler after a library replaced it. Call it in the main thread."""
        assert self._sockets is not None, "nothing watches for signals: use smddp.run"
        signal.signal(signal.SIGTERM, self._request)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._sockets is not None
        if (wakeup := signal.set_wakeup_fd(self._previous_wakeup)) != self._sockets[1].fileno():
            signal.set_wakeup_fd(wakeup)  # another library's, such as asyncio's: put it back
        sockets, self._sockets = self._sockets, None
        for each in sockets:
            each.close()
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._request:  # else the script installed its own handler: keep it
                signal.signal(number, previous or signal.SIG_DFL)

    def look(self) -> None:
        """Record signals that arrived while the main thread was in C code. Call it regularly from another thread."""
        sockets = self._sockets
        try:
            numbers = sockets[0].recv(4096) if sockets is not None else b""
        except OSError:  # no signal, or the socket is closed
            return
        if any(number in STOP_SIGNALS and signal.getsignal(number) == self._request for number in numbers):
            self._note()

    def _note(self) -> None:
        if self._requested_at is None:
            self._requested_at = time.monotonic()  # the grace period counts from the first signal
        self.requested = True

    def _request(self, _signal_number: int, _frame: FrameType | None) -> None:
        self._note()
        if self.is_unheeded and self.on_unheeded is not None:
            self.heeded = True  # a further signal must not call it again
            self.on_unheeded()


stop_signal = StopSignal()
"""The process's instance, which ``smddp.run`` enters and ``smddp.Trainer`` polls."""
