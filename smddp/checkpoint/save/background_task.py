"""A background thread for one action at a time; the training thread takes the result or error. Not about checkpoints.

Notes on the hand-over:
  1. Each action has its own thread, so that between two saves no thread runs that a fork or the exit could interrupt.
  2. Only the training thread calls `BackgroundTask`. It needs no lock: `submit` hands the action over by starting the
     thread, and `result` reads the outcome only once the thread has ended.
  3. `_under_way` keeps running tasks for `_leave_in_order`, as a task may outlive its `BackgroundTask`. Its additions
     and removals are single operations under the GIL.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
"""How long `give_up`, and the exit of the process, wait for running tasks."""

_LAST_SECONDS = 1.0  # how long `cancel` waits for the thread

_Result = TypeVar("_Result")


class BackgroundTask(Generic[_Result]):
    """Runs one action at a time in the background. The action's argument is an event, set to cancel the action."""

    def __init__(self) -> None:
        self._task: _Task[_Result] | None = None

    @property
    def under_way(self) -> str | None:
        """The name of the running action; None if absent."""
        return self._task.name if self._task is not None and self._task.is_under_way else None

    def submit(self, action: Callable[[threading.Event], _Result], *, name: str) -> None:
        """Start an action, once the previous outcome is taken. Raise RuntimeError if no thread can start.

        `name` is for people: ``the checkpoint of step 7``.
        """
        assert self._task is None, "one at a time"
        # Order: set `_task` before the start, so that after a Ctrl-C between the two `wait` still finds the task.
        self._task = _Task(action, name)
        try:
            self._task.start()
        except RuntimeError:
            self._task = None  # a thread that did not start cannot be joined
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the running action, `timeout` seconds at most, and return whether it has ended."""
        return self._task is None or self._task.wait(timeout)

    def result(self) -> _Result | None:
        """Return the result of an ended action, or raise its error, once. Return None if there is no new outcome."""
        task = self._task
        if task is None or task.is_under_way:
            return None
        self._task = None
        return task.outcome()

    def give_up(self) -> str | None:
        """Wait `GRACE_SECONDS` for the running action, then cancel it and return its name; None if it ended."""
        if self._task is None or self._task.wait(GRACE_SECONDS):
            return None
        self._task.cancel()
        return self._task.name


class _Task(Generic[_Result]):
    """One action, its thread and its outcome."""

    def __init__(self, action: Callable[[threading.Event], _Result], name: str) -> None:
        self.name = name
        self._action: Callable[[threading.Event], _Result] | None = action
        self._cancelled = threading.Event()
        self._result: _Result | None = None
        self.error: BaseException | None = None
        # A daemon, so that a disk that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="smddp-checkpoint", daemon=True)

    @property
    def is_under_way(self) -> bool:
        """Whether the thread runs. Always False in a forked child."""
        return self._thread.is_alive()

    def start(self) -> None:
        _under_way.add(self)
        try:
            self._thread.start()
        except RuntimeError:
            _under_way.discard(self)
            raise

    def wait(self, timeout: float | None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def outcome(self) -> _Result | None:
        if self.error is not None:
            raise self.error
        return self._result

    def cancel(self) -> bool:
        """Set the event, and return whether the thread ends within `_LAST_SECONDS`."""
        self._cancelled.set()
        return self.wait(_LAST_SECONDS)

    def _run(self) -> None:
        assert self._action is not None
        try:
            self._result = self._action(self._cancelled)
        except BaseException as error:  # not swallowed: `outcome` raises it in the training thread
            self.error = error
        finally:
            self._action = None  # frees the state that the action refers to
            _under_way.discard(self)


_under_way: set[_Task[Any]] = set()
"""Tasks from just before their thread starts until it ends."""


def _leave_in_order() -> None:
    """Wait `GRACE_SECONDS` for running tasks at exit, then cancel each and wait `_LAST_SECONDS`."""
    # Python stops daemon threads at exit, wherever they are. A thread stopped within C++, such as in the store of
    # torch.distributed, would abort the process: so tasks end first. One that waits for a disk or server is abandoned.
    deadline = time.monotonic() + GRACE_SECONDS
    for task in list(_under_way):
        if not task.is_under_way:  # the parent's thread does not exist in a forked child
            continue
        logger.warning(
            "the process ends while %s is being written: waiting up to %g s; call close() to wait as long as it takes",
            task.name,
            GRACE_SECONDS,
        )
        if not task.wait(max(0.0, deadline - time.monotonic())) and not task.cancel():
            logger.error("%s was not finished: the process ends without it", task.name)
        elif task.error is not None:
            logger.error("%s failed while the process ended: %s", task.name, task.error)


atexit.register(_leave_in_order)
