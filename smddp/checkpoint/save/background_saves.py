"""The saves of one run in the background, one at a time: how each ended, and which failures are tolerated.

Notes on the hand-over:
  1. `save` counts a save before anything can fail on one rank, so the numbers are the same on all ranks.
  2. The thread sets `last_report` before `_durable`; `_durable` is read first.
  3. The checkpoint is durable before older ones are removed, so after a timeout of `wait` the thread may still prune.
  4. Each action has its own thread, so that between two saves no thread runs that a fork or the exit could interrupt.
  5. Only the training thread calls `BackgroundTask`. It needs no lock: `submit` hands the action over by starting the
     thread, and `result` reads the outcome only once the thread has ended.
  6. `_under_way` keeps running tasks for `_leave_in_order`, as a task may outlive its `BackgroundTask`. Its additions
     and removals are single operations under the GIL.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar

from smddp.checkpoint.save.attempt import Moment, SaveReport, SaveRequest
from smddp.checkpoint.save.rank_saver import RankSaver, SaveFailedError
from smddp.display_text import as_size, shown_path
from smddp.threads import Worker

logger = logging.getLogger(__name__)

_FELT_SECONDS = 1.0  # shorter waits, together, are not worth a warning
_REMEMBERED = 9  # saves whose median is the usual time
_SLOW, _SLOW_SECONDS = 3.0, 1.0  # a save of more than so many usual times, and seconds, is slow
_SAID_SECONDS = 600.0  # from one line about a save to the next, at most, while saves are made
_WAITS = (
    "training has waited %.1f s for saves, now for %s: they come faster than one is written. Save less often, by "
    "CheckpointPolicy(every=…, seconds=…) or longer epochs, or to a faster place. This is told once"
)
_WARMING_UP = "the memory to save from"

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

    @property
    def is_free(self) -> bool:
        """Whether no action runs, and no outcome waits to be taken."""
        return self._task is None

    def submit(self, action: Callable[[threading.Event], _Result], *, name: str) -> None:
        """Start an action, once the previous outcome is taken. Raise NoThreadError if no thread can start.

        `name` is for people: ``the checkpoint of step 7``.
        """
        assert self._task is None, "one at a time"
        # Order: set `_task` before the start, so that after an error of a signal's handler `wait` finds a task that
        # runs. One that does not run yet never will.
        self._task = _Task(action, name)
        try:
            self._task.start()
        except BaseException:
            if not self._task.is_begun:
                self._task = None
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
        # In a daemon thread, so that a disk that hangs does not keep the process alive.
        self._worker = Worker(self._run, "smddp-checkpoint")

    @property
    def is_under_way(self) -> bool:
        """Whether the thread runs. Always False in a forked child."""
        return self._worker.is_running

    def start(self) -> None:
        _under_way.add(self)
        try:
            self._worker.start()
        except BaseException:
            if not self._worker.has_begun:
                _under_way.discard(self)
            raise

    @property
    def is_begun(self) -> bool:
        """Whether the action runs or has ended. After an error of `start` it stays so."""
        return self._worker.has_begun

    def wait(self, timeout: float | None) -> bool:
        return self._worker.wait(timeout)

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


class BackgroundSaves:
    """The saves of one run. The training thread calls it; any thread may read `last_report`."""

    def __init__(self, *, tolerate_failures: int) -> None:
        self._task: BackgroundTask[SaveReport | None] = BackgroundTask()
        self._tolerate_failures = tolerate_failures
        self._failures = 0
        self._durable = 0
        self._durations: list[float] = []
        self._said_at = 0.0
        self._waited = 0.0
        self.is_main = False
        """Whether this is rank 0, which logs; known once the run is open."""
        self.count = 0
        """How many saves have begun."""
        self.last_report: SaveReport | None = None
        """The report of the last durable save."""

    @property
    def are_busy(self) -> bool:
        """Whether a save or the preparation is under way."""
        return self._task.under_way is not None

    @property
    def is_last_durable(self) -> bool:
        """Whether the last save is durable, or none has begun."""
        return self._durable == self.count

    def prepare(self, preparation: Callable[[], Callable[[], None]]) -> None:
        """Prepare the first save: call ``preparation`` now, and what it returns in the background.

        A failure in the background is only logged: the first save does without the preparation.
        """
        self.await_turn()
        allocate = preparation()

        def run(_cancelled: threading.Event) -> None:
            try:
                allocate()
            except Exception as error:  # not swallowed: the first save fails with its own, on all ranks
                logger.warning(
                    "could not take %s: %s: %s; the first save tries again", _WARMING_UP, type(error).__name__, error
                )

        self._task.submit(run, name=_WARMING_UP)

    def await_turn(self) -> None:
        """Wait, without a bound, until the background thread ends, and raise or log its error."""
        # The thread reads the snapshot's memory until it ends: only then may the next snapshot overwrite it.
        name, started = self._task.under_way, time.perf_counter()
        self._task.wait()
        waited = time.perf_counter() - started
        if name not in (None, _WARMING_UP):
            before, self._waited = self._waited, self._waited + waited
            if before <= _FELT_SECONDS < self._waited and self.is_main:
                logger.warning(_WAITS, self._waited, name)
        self.check()

    def save(self, rank_saver: RankSaver, moment: Moment, failure: Exception | None) -> None:
        """Copy the state now, and write the copy in the background. Wait for an earlier save, and raise its error.

        With a ``failure`` of this rank, the save fails on all ranks, and the failure is raised here.
        """
        self.count += 1
        earlier: Exception | None = None
        started = time.perf_counter()
        # A signal's handler may raise here, such as DataLoader's for a worker that was killed. That ends the wait, not
        # the earlier save: wait again.
        while not self._task.is_free:
            try:
                self.await_turn()
            except Exception as error:  # noqa: PERF203, not swallowed: raised below, as the others may wait for this rank
                if earlier is None:
                    earlier = error
                else:
                    logger.error("%s", error)
        waited = time.perf_counter() - started
        request = rank_saver.request(self.count, moment, waited=waited, failure=failure)
        self._task.submit(partial(self._save, rank_saver, request), name=f"the checkpoint of step {moment.step}")
        if cause := earlier or request.failure:
            raise cause

    def check(self) -> None:
        """Raise the error of a save that failed, or log it if it is tolerated."""
        try:
            self._take_outcome()
        except SaveFailedError as error:
            if not (self._failures <= self._tolerate_failures and error.environmental):
                raise  # always if the state itself is the cause
            if self.is_main:
                logger.error(
                    "%s; this was failure %d of %d in a row that are tolerated",
                    error,
                    self._failures,
                    self._tolerate_failures,
                )

    def wait(self, timeout: float | None = None) -> SaveReport | None:
        """Wait until the last save is durable; return None if it is not within the timeout. Raise its error."""
        if self._task.wait(timeout):
            self._take_outcome()
        return self.last_report if self.is_last_durable else None

    def finish(self) -> bool:
        """Wait for the last save, and return whether nothing is lost. Raise or log its error, as `check` does."""
        self._task.wait()
        self.check()
        return self.is_last_durable

    def give_up(self) -> bool:
        """Wait ten seconds for a save in progress, and log its error; return whether it has ended."""
        if (name := self._task.give_up()) is not None:
            logger.warning("%s was given up", name)
            return False
        try:
            self._task.result()
        except Exception as failure:  # not swallowed: logged, so that the current exception is the one raised
            logger.error("%s", failure)
        return True

    def _take_outcome(self) -> None:
        """Take the outcome of an ended save, once: count the failures in a row, and raise the failure."""
        try:
            if self._task.result() is not None:
                self._failures = 0
        except SaveFailedError:
            self._failures += 1
            raise

    def _save(self, rank_saver: RankSaver, request: SaveRequest, cancelled: threading.Event) -> SaveReport | None:
        """Save, report and prune, in the background thread."""
        try:
            report = rank_saver.save(request, cancelled)
            self.last_report, self._durable = report, request.number
        except SaveFailedError:
            if request.failure is not None:
                return None  # `save` raised this error already
            raise
        if self.is_main:
            logger.log(
                logging.INFO if self._is_worth_saying(report.durable_seconds) else logging.DEBUG,
                "saved %s: %s in %.2f s (stall %.3f s)",
                shown_path(rank_saver.path(report.step)),
                as_size(report.size),
                report.durable_seconds,
                report.stall_seconds + report.waited_seconds,
            )
        rank_saver.prune(request)
        return report

    def _is_worth_saying(self, seconds: float) -> bool:
        """Return whether a save is the first one, the first in ten minutes, or much slower than the usual one."""
        before, self._durations = self._durations, [*self._durations, seconds][-_REMEMBERED:]
        is_first = not before or time.monotonic() - self._said_at >= _SAID_SECONDS
        if is_worth := is_first or seconds > max(_SLOW * median(before), _SLOW_SECONDS):
            self._said_at = time.monotonic()
        return is_worth
