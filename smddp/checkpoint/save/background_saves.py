"""The saves of one run in the background, one at a time: how each ended, and which failures are tolerated.

Notes on the hand-over:
  1. `begin` counts a save before anything can fail on one rank, so the numbers are the same on all ranks.
  2. The thread sets `last_report` before `_durable`; `_durable` is read first.
  3. The checkpoint is durable before older ones are removed, so after a timeout of `wait` the thread may still prune.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from smddp.checkpoint.save.attempt import Moment, SaveReport, SaveRequest
from smddp.checkpoint.save.background_task import BackgroundTask
from smddp.checkpoint.save.commit import RankSaver, SaveFailedError
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_FELT_SECONDS = 1.0  # shorter waits, together, are not worth a warning
_REMEMBERED = 9  # saves whose median is the usual time
_SLOW, _SLOW_SECONDS = 3.0, 1.0  # a save of more than so many usual times, and seconds, is slow
_WAITS = (
    "training has waited %.1f s for saves, now for %s: they come faster than one is written. Save less often, by "
    "CheckpointPolicy(every=…, seconds=…) or longer epochs, or to a faster place. This is told once"
)
_WARMING_UP = "the memory to save from"


class BackgroundSaves:
    """The saves of one run. The training thread calls it; any thread may read `last_report`."""

    def __init__(self, *, tolerate_failures: int) -> None:
        self._task: BackgroundTask[SaveReport | None] = BackgroundTask()
        self._tolerate_failures = tolerate_failures
        self._failures = 0
        self._durable = 0
        self._durations: list[float] = []
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

    def prepare(self, preparation: Callable[[], Callable[[], None]]) -> None:
        """Prepare the first save: call ``preparation`` now, and what it returns in the background."""
        self.await_turn()
        allocate = preparation()

        def run(_cancelled: threading.Event) -> None:
            allocate()

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
        earlier: CheckpointError | None = None
        started = time.perf_counter()
        try:
            self.await_turn()
        except CheckpointError as error:  # raised below: the other ranks may wait for this rank's result
            earlier = error
        waited = time.perf_counter() - started
        request = rank_saver.request(self.count, moment, waited=waited, failure=failure)
        self._task.submit(partial(self._save, rank_saver, request), name=f"the checkpoint of step {moment.step}")
        if cause := earlier or request.failure:
            raise cause

    def check(self) -> None:
        """Raise the error of a save that failed, or log it if it is tolerated."""
        try:
            if self._task.result() is not None:
                self._failures = 0
        except SaveFailedError as error:
            self._failures += 1
            self._tolerate(
                error,
                self._failures <= self._tolerate_failures,
                f"training goes on, this was failure {self._failures} of {self._tolerate_failures} in a row that are "
                "tolerated",
            )

    def wait(self, timeout: float | None = None) -> SaveReport | None:
        """Wait until the last save is durable; return None if it is not within the timeout. Raise its error."""
        if self._task.wait(timeout) and self._task.result() is not None:
            self._failures = 0
        return self.last_report if self._durable == self.count else None

    def finish(self) -> bool:
        """Wait for the last save, and return whether nothing is lost. Log its error if failures are tolerated."""
        try:
            return self.wait() is not None or self.count == 0
        except SaveFailedError as error:
            self._tolerate(error, self._tolerate_failures > 0, "training ends without it")
            return False

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

    def _tolerate(self, error: SaveFailedError, is_tolerated: bool, what_next: str) -> None:
        """Log the error of a save, or raise it. An error that the state itself causes is always raised."""
        if not (is_tolerated and error.environmental):
            raise error
        if self.is_main:
            logger.error("%s; %s", error, what_next)

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
                "saved %s: %.1f MB in %.2f s (stall %.3f s)",
                rank_saver.path(report.step),
                report.size / 1e6,
                report.durable_seconds,
                report.stall_seconds + report.waited_seconds,
            )
        rank_saver.prune(request)
        return report

    def _is_worth_saying(self, seconds: float) -> bool:
        """Return whether a save is the first one, or much slower than the median of the saves before it."""
        before, self._durations = self._durations, [*self._durations, seconds][-_REMEMBERED:]
        return not before or seconds > max(_SLOW * median(before), _SLOW_SECONDS)
