"""All trackers of a run, as one tracker that never fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker

logger = logging.getLogger(__name__)


class TrackerGroup:
    """Call each tracker, in order; one that raises is not called again.

    Making it raises TypeError for an object that is no tracker.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        for tracker in trackers:
            if isinstance(tracker, type) or not isinstance(tracker, Tracker):
                raise TypeError(
                    f"trackers has {tracker!r}, which is no tracker: give objects with start, log, checkpoint and "
                    "finish, such as smddp.metrics.TensorBoard(); a subclass of smddp.metrics.Tracker has all four"
                )
        self._working = list(trackers)

    def start(self, run: TrackedRun) -> None:
        """Tell each tracker that the run begins or continues."""
        self._tell(lambda tracker: tracker.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the numbers of a metric line to each tracker."""
        self._tell(lambda tracker: tracker.log(step, metrics))

    def checkpoint(self, step: int, place: str) -> None:
        """Tell each tracker that a checkpoint is durable."""
        self._tell(lambda tracker: tracker.checkpoint(step, place))

    def finish(self, status: Status, model: str | None) -> None:
        """Tell each tracker that the run ends."""
        self._tell(lambda tracker: tracker.finish(status, model))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        self._working = [tracker for tracker in self._working if _works(tracker, what)]


def _works(tracker: Tracker, what: Callable[[Tracker], None]) -> bool:
    try:
        what(tracker)
    except Exception as error:
        # A tracker must not end hours of training, and each further call to a dead server costs time.
        logger.warning(
            "the tracker %s failed, and gets nothing more; training goes on: %s: %s",
            type(tracker).__name__,
            type(error).__name__,
            error,
            exc_info=logger.isEnabledFor(logging.DEBUG),
        )
        return False
    return True
