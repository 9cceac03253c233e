"""DataLoader workers that survive a stop's signal until their rank ends.

``scancel``, stock torchrun and ``kill -- -PGID`` signal every process of a rank. A rank that is told to stop trains on
until all ranks agree on a step, and needs its workers for that; torch's own handler would end them at once.

torch's handler also distinguishes the rank's SIGTERM, by which multiprocessing ends persistent workers when the rank
exits, from other senders' SIGTERM. A Python handler does not know the sender, so here the rank ends its workers by
another signal. A loader that is collected as garbage sets its workers' ``done_event``, and then sends them SIGTERM. So
a worker ends by a SIGTERM if that event is set.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from smddp.process import fork_server
from smddp.process.preemption import STOP_SIGNALS

logger = logging.getLogger(__name__)

_END_SIGNAL = signal.SIGURG
"""Ends a worker. All other processes ignore it by default."""

_GRACE_SECONDS = 0.5


class OutliveStop:
    """A ``worker_init_fn``: the worker ignores a stop's signals while its parent lives, and then calls ``then``."""

    def __init__(self, then: Callable[[int], object] | None = None) -> None:
        self.then = then
        fork_server.outlive_stop()
        end_daemons_at_exit()

    def __call__(self, worker_id: int) -> None:
        """Replace torch's handlers in this worker."""
        parent, rank = os.getppid(), multiprocessing.parent_process()

        def ignore_while_parent_lives(_signal_number: int, frame: FrameType | None) -> None:
            if os.getppid() != parent:
                os._exit(0)
            if (done := _done_event(frame)) is not None:
                # In a thread: the interrupted one may hold the event's lock, which this handler would wait for.
                threading.Thread(target=_end_if_set, args=(done,), daemon=True).start()

        if rank is not None and rank.pid != parent:
            # The parent is a fork server, which lives as long as its children. So watching the parent, as this handler
            # and torch do, does not show that the rank is gone.
            threading.Thread(target=_end_with, args=(rank,), daemon=True).start()

        signal.signal(_END_SIGNAL, _end)
        for number in STOP_SIGNALS:
            signal.signal(number, ignore_while_parent_lives)
        if worker_id == 0 and not fork_server.outlives_stop():
            logger.warning(
                "multiprocessing's fork server was started before smddp could prepare it: a SIGTERM to the process "
                "group ends it, and all DataLoader workers with it, before a checkpoint is taken; start no process by "
                "it before the first loader is made"
            )
        if self.then is not None:
            self.then(worker_id)


def _end_with(rank: BaseProcess) -> None:
    rank.join()  # waits for the end of a parent process; it does not reap it
    os._exit(0)


def _done_event(frame: FrameType | None) -> Any:
    """Return the event by which a loader ends this worker, from the worker's own loop; None if absent."""
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("done_event")


def _end_if_set(done: Any) -> None:
    if done.is_set():
        os._exit(0)


def _end(_signal_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # as torch's handler does


@cache
def end_daemons_at_exit() -> None:
    """End daemonic processes that survive SIGTERM when this process exits. Registers the hook once.

    Under ``smddp.run`` a forked process survives SIGTERM because it inherits the rank's handler. At exit
    multiprocessing sends daemons SIGTERM and waits without a bound. This hook is registered later than
    multiprocessing's, and so runs before it.
    """
    atexit.register(_end_daemons, os.getpid())


def _end_daemons(owner: int) -> None:
    """End the daemonic processes of process ``owner`` within 0.5 s; do nothing in a fork of it."""
    if os.getpid() != owner:
        return
    # torch's SIGCHLD handler raises in the main thread for each worker that a signal ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    for child in daemons:
        assert child.pid is not None
        with suppress(ProcessLookupError):  # a fork server's child may have ended, and been reaped by the server
            os.kill(child.pid, _END_SIGNAL)
        child.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in daemons:
        child.join(max(deadline - time.monotonic(), 0.0))
        if child.is_alive():
            child.kill()
            child.join()
