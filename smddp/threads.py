"""Threads whose begin and end are known for sure, also where the handler of a signal raises.

Python calls such a handler in the main thread, between any two of its operations: KeyboardInterrupt is not the only
error that comes from one. While a DataLoader has workers, torch's handler of SIGCHLD raises RuntimeError wherever the
main thread is, once a worker is killed. Within `threading.Thread` that has two effects:

1. An error out of `start` does not tell whether the thread runs.
2. An error out of `join` makes Python up to 3.12 take a running thread for one that has ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

_LOOK_SECONDS = 0.05


class NoThreadError(RuntimeError):
    """No thread can start: a limit is reached, or Python ends."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raise NoThreadError if none can start. After any other error, the thread may run or not."""
    try:
        thread.start()
    except (RuntimeError, KeyError) as error:
        if "new thread" in str(error):
            raise NoThreadError(str(error)) from error
        # After an error of a handler, `start` itself may fail: its lock is unlocked, or the thread, which runs, has
        # removed its own entry.
        if error.__context__ is not None and ("unlocked lock" in str(error) or isinstance(error, KeyError)):
            raise error.__context__ from None
        raise


class Worker:
    """Some work in a daemon thread."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process = os.getpid()
        # Guards `_is_decided` and `has_begun`: the work begins, or is given up, whichever is first. Held for three
        # assignments.
        self._deciding = threading.Lock()
        self._is_started = self._is_decided = self._has_ended = False
        self.has_begun = False
        """Whether the work runs or has ended."""
        self._working = threading.Lock()
        """Locked until the work has ended. A waiter whom an error ends may leave it locked, so `wait` looks at
        `_has_ended` every `_LOOK_SECONDS`."""

    def start(self) -> None:
        """Start the thread. After an error the work either runs, or never will; after NoThreadError never."""
        self._working.acquire()
        try:
            self._is_started = True
            start_thread(self._thread)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Keep the work from beginning, if it has not begun."""
        self._decide(begins=False)

    @property
    def is_running(self) -> bool:
        """Whether the work runs, or its thread is about to begin it. A fork has no such thread."""
        is_given_up = self._is_decided and not self.has_begun
        return self._is_started and not is_given_up and not self._has_ended and self._process == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this thread does the work."""
        return threading.current_thread() is self._thread

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the work, and return whether it does not run."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_running:
            left = _LOOK_SECONDS if deadline is None else min(deadline - time.monotonic(), _LOOK_SECONDS)
            if left <= 0:
                return False
            if self._working.acquire(timeout=left):
                self._working.release()
        if self._thread.is_alive():  # in its last moments, which a fork must not meet
            self._thread.join()
        return True

    def _decide(self, *, begins: bool) -> bool:
        with self._deciding:  # Order: `is_running` reads `_is_decided` first.
            is_first = not self._is_decided
            self.has_begun = self.has_begun or (is_first and begins)
            self._is_decided = True
        return is_first

    def _run(self) -> None:
        if not self._decide(begins=True):
            return
        try:
            self._work()
        finally:
            self._has_ended = True
            self._working.release()


def work_together(
    work: Callable[[], object], *, threads: int, name: str, stop: Callable[[BaseException], object]
) -> None:
    """Call ``work`` in this thread and beside it, in at most ``threads`` in all, and return once all calls have ended.

    An error of this thread goes to ``stop``, which keeps the other calls from going on, and is raised once they have
    ended.
    """
    others = [Worker(work, name) for _ in range(threads - 1)]
    try:
        with suppress(NoThreadError):  # at Python's exit this thread does all
            for each in others:
                each.start()
        work()
        _end(others)
    except BaseException as error:
        stop(error)
        _end(others)
        raise


def _end(workers: Sequence[Worker]) -> None:
    for each in workers:
        each.give_up()
        each.wait()
