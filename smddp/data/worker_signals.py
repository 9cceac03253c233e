"""DataLoader workers that outlive a stop's signal until their rank ends.

``scancel``, stock torchrun and ``kill -- -PGID`` signal every process of a rank. A rank that is told to stop trains on
until all ranks agree on a step, and needs its workers for that; torch's own handler would end them at once.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from types import FrameType

from smddp.process.preemption import STOP_SIGNALS

_GRACE_SECONDS = 0.5


class OutliveStop:
    """A ``worker_init_fn``: the worker ignores a stop's signals for as long as its parent lives.

    Args:
        then: The user's own ``worker_init_fn``, called with the worker's number.
    """

    def __init__(self, then: Callable[[int], object] | None = None) -> None:
        self.then = then
        _end_workers_at_exit()

    def __call__(self, worker_id: int) -> None:
        """Replace the handler that torch gave this worker."""
        parent = os.getppid()

        def ignore_while_parent_lives(_signal_number: int, _frame: FrameType | None) -> None:
            if os.getppid() != parent:
                os._exit(0)

        for number in STOP_SIGNALS:
            signal.signal(number, ignore_while_parent_lives)
        if self.then is not None:
            self.then(worker_id)


@cache
def _end_workers_at_exit() -> None:
    """Kill daemonic processes that outlive SIGTERM, once, when this process exits.

    multiprocessing sends them SIGTERM at exit and waits without a bound. This hook is registered later than
    multiprocessing's, and so runs before it.
    """
    atexit.register(_end_daemons)


def _end_daemons() -> None:
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    for child in daemons:
        child.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in daemons:
        child.join(max(deadline - time.monotonic(), 0.0))
        if child.is_alive():
            child.kill()
