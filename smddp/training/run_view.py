"""What a run lets others see of it, on rank 0: metric lines in the log, and what its trackers are told.

The trainer says what was measured; when a tracker hears of it, and of checkpoints and the end, is decided here.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from smddp.job import Job
from smddp.metrics.lines import report
from smddp.metrics.tracking import JsonLines, Status, TrackedRun, Tracker, TrackerGroup
from smddp.training.run_checkpoints import Progress
from smddp.training.run_saves import RunSaves, end_with_run


class RunView:
    """Shows one run, from its first metric line to its end.

    It may outlive the trainer, and so holds nothing of it.

    Args:
        job: The trainer's part of it.
        progress: The run's.
        trackers: The user's; ``metrics.jsonl`` is always written.
        name: The trainer's, where the job has several.

    Raises:
        TypeError: One of the trackers is none.
    """

    def __init__(self, job: Job, progress: Progress, trackers: Sequence[Tracker], *, name: str | None = None) -> None:
        self._job = job
        self._name = name
        self._progress = progress
        self._trackers = TrackerGroup([JsonLines(), *trackers])
        self._ending = _Ending(trackers=self._trackers, process=os.getpid())
        self._saves: RunSaves | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._told_checkpoint: tuple[int, str] | None = None

    def begin(self, saves: RunSaves) -> None:
        """Starts the trackers, now that it is known where the run goes on."""
        self._saves = saves
        run = TrackedRun(id=self._progress.run, step=saves.first_step, job=self._job, part=self._name)
        self._trackers.start(run)
        self._tell_trackers()
        if not end_with_run(self):
            weakref.finalize(self, self._ending.end, "finished")

    def show(self, metrics: Mapping[str, float]) -> None:
        """Shows what was measured at this step."""
        progress = self._progress
        report(progress.steps, progress.epoch, metrics)
        self._waiting.append((progress.steps, {"epoch": progress.epoch, **metrics}))
        if self._saves is not None:
            self._tell_trackers()

    def saved_model(self) -> None:
        """Notes that the model was written to the job's directory."""
        self._ending.model = str(self._job.model_dir)

    def __enter__(self) -> RunView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tells the trackers of the end, under ``smddp.run``."""
        assert self._saves is not None
        self._tell_trackers()
        self._ending.end("stopped" if self._saves.was_stopped else "finished" if error is None else "failed")

    def _tell_trackers(self) -> None:
        assert self._saves is not None
        for step, metrics in self._waiting:
            self._trackers.log(step, metrics)
        self._waiting.clear()
        newest = self._saves.newest
        if newest is not None and newest != self._told_checkpoint:
            self._told_checkpoint = newest
            self._trackers.checkpoint(*newest)


@dataclass(slots=True, kw_only=True)
class _Ending:
    """What the end of a run needs."""

    trackers: TrackerGroup
    process: int
    model: str | None = None
    is_over: bool = False

    def end(self, status: Status) -> None:
        """Tells the trackers, once."""
        if not self.is_over and os.getpid() == self.process:  # a process that the script forked ends for itself
            self.is_over = True
            self.trackers.finish(status, self.model)
