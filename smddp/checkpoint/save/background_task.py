"""The thread that saves while training goes on: one at a time, and nothing that goes wrong in it is lost.

Each save is a thread of its own, which begins with it and ends with it: between two saves there is none that a fork
or the end of Python could meet. It knows nothing of checkpoints.
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
"""How long a process that ends without `BackgroundTask.wait` waits for what is under way."""

_LAST_SECONDS = 1.0

_Result = TypeVar("_Result")


class BackgroundTask(Generic[_Result]):
    """Does one thing at a time in the background.

    What it does gets an event that tells it to give up: the process is about to end.
    """

    def __init__(self) -> None:
        self._task: _Task[_Result] | None = None

    @property
    def under_way(self) -> str | None:
        """The name of what is under way, if something is."""
        return self._task.name if self._task is not None and self._task.is_under_way else None

    def submit(self, action: Callable[[threading.Event], _Result], *, name: str) -> None:
        """Begin with an action. The one before must have ended, and its outcome been taken.

        Args:
            action: What to do; its argument is set when it shall give up.
            name: What it is, for people: ``the checkpoint of step 7``.

        Raises:
            RuntimeError: There can be no more threads: nothing has begun.
        """
        assert self._task is None, "one at a time"
        # Order: known before it begins, so that after a Ctrl-C in the midst of this it is still waited for.
        self._task = _Task(action, name)
        try:
            self._task.start()
        except RuntimeError:
            self._task = None  # a thread that never began can't be waited for
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for what is under way.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Returns:
            Whether nothing is under way any more.
        """
        return self._task is None or self._task.wait(timeout)

    def result(self) -> _Result | None:
        """Return the result of what has ended, once; None if there is nothing new.

        Raises:
            Exception: What the action raised, with its own traceback.
        """
        task = self._task
        if task is None or task.is_under_way:
            return None
        self._task = None
        return task.outcome()

    def give_up(self) -> str | None:
        """Give what is under way ten seconds to end, then tell it to give up.

        Returns:
            The name of what did not end by itself.
        """
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
        # A daemon: a disk that hangs must not keep a process alive that has nothing left to do.
        self._thread = threading.Thread(target=self._run, name="smddp-checkpoint", daemon=True)

    @property
    def is_under_way(self) -> bool:
        """Whether the thread runs. After a fork it does not in the child."""
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
        """Tell it to give up; whether it does at once."""
        self._cancelled.set()
        return self.wait(_LAST_SECONDS)

    def _run(self) -> None:
        assert self._action is not None
        try:
            self._result = self._action(self._cancelled)
        except BaseException as error:  # not swallowed: `outcome` raises it where training goes on
            self.error = error
        finally:
            self._action = None  # and with it all that it holds
            _under_way.discard(self)


_under_way: set[_Task[Any]] = set()


def _leave_in_order() -> None:
    """Let what is under way end before Python does, which stops threads wherever they are.

    A thread that is stopped within C++, as the store of torch.distributed is, would abort the process; so it is told to
    give up, and only one that waits for a disk or a server is left to its fate.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    for task in list(_under_way):
        if not task.is_under_way:  # a fork's memory of its parent's thread
            continue
        logger.warning(
            "the process ends while %s is being written: waiting up to %g s; call close() to wait as long as it takes",
            *(task.name, GRACE_SECONDS),
        )
        if not task.wait(max(0.0, deadline - time.monotonic())) and not task.cancel():
            logger.error("%s was not finished: the process ends without it", task.name)
        elif task.error is not None:
            logger.error("%s failed while the process ended: %s", task.name, task.error)


atexit.register(_leave_in_order)
