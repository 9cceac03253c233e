"""What a run lets others see of it, on rank 0: metric lines in the log, a live line, and what its trackers are told.

The trainer says what was measured; when a tracker hears of it, and of checkpoints and the end, is decided here.
"""

from __future__ import annotations

import os
import sys
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import torch

from smddp.job import Job
from smddp.metrics.lines import report
from smddp.metrics.live_line import LiveLine, LiveRun, shown_on_terminal
from smddp.metrics.memory import peak_memory
from smddp.metrics.tracking import JsonLines, Status, TrackedRun, Tracker, TrackerGroup
from smddp.process.live_text import is_watched
from smddp.process.terminal_line import TerminalLine, make_room_for_other_process
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.open_runs import open_runs
from smddp.training.run_checkpoints import Progress
from smddp.training.run_saves import RunSaves


class RunView:
    """Shows one run, from its first metric line to its end.

    It may outlive the trainer, and so holds nothing of it.

    Args:
        job: The trainer's part of it.
        progress: The run's.
        trackers: The user's; ``metrics.jsonl`` is always written.
        device: The rank's.
        name: The trainer's, where the job has several.
        live: Whether there is a live line, where a person watches.
        policy: When the next checkpoint is due.

    Raises:
        TypeError: One of the trackers is none.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress,
        trackers: Sequence[Tracker],
        *,
        device: torch.device,
        name: str | None,
        live: bool,
        policy: CheckpointPolicy,
    ) -> None:
        self._job = job
        self._name = name
        self._progress = progress
        self._run: str | None = None
        self._trackers = TrackerGroup([JsonLines(), *trackers])
        self._ending = _Ending(trackers=self._trackers, process=os.getpid())
        self._saves: RunSaves | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._told_checkpoint: tuple[int, str] | None = None
        self._live: LiveRun | None = None
        if live:
            self._live = LiveRun(
                steps=lambda: progress.steps,
                epoch=lambda: progress.epoch,
                newest_checkpoint=self._newest_checkpoint,
                memory=partial(peak_memory, device),
            )
            if policy.every != "auto":  # whose next time only its clock knows
                self._live.checkpoint_seconds, self._live.checkpoint_steps = policy.seconds, policy.every

    @property
    def run(self) -> str:
        """What tells this run from others."""
        return self._run or self._progress.run

    def belong_to(self, other: RunView, name: str) -> None:
        """Make this a part of a run that has begun, with an id and, where the trainer has no name, files of its own.

        Args:
            other: The view of that run.
            name: Of the part there.
        """
        self._run = uuid.uuid5(uuid.NAMESPACE_OID, f"{other.run}/{name}").hex[:12]
        self._name = self._name or name

    def begin(self, saves: RunSaves) -> None:
        """Start the trackers, now that it is known where the run goes on."""
        self._saves = saves
        run = TrackedRun(id=self.run, step=saves.first_step, job=self._job, part=self._name)
        self._trackers.start(run)
        self._tell_trackers()
        if not open_runs.end_with_script(self):
            weakref.finalize(self, self._ending.end_without_run, getattr(sys, "last_value", None))
        self._show_line()

    def begin_beside_main(self, saves: RunSaves) -> None:  # noqa: ARG002
        """Leave alone what rank 0 may show on the same terminal; for the other ranks."""
        if self._live is not None and is_watched(sys.stderr):
            make_room_for_other_process()

    def aim(self, total: int | None, samples_a_step: int | None) -> None:
        """Begin a loop.

        Args:
            total: The step at which it ends, if that is known.
            samples_a_step: Over all ranks, if that is known.
        """
        if self._live is not None and self._saves is not None:
            self._live.total, self._live.samples_a_step = total, samples_a_step
            self._show_line()

    def rest(self) -> None:
        """End a loop: no live line is shown until the next one."""
        self._ending.hide_line()

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that shows anything."""
        return self._job.cluster.is_main

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show what was measured at this step."""
        progress = self._progress
        report(progress.steps, progress.epoch, metrics, trainer=self._name)
        if self._live is not None:
            self._live.metrics = {**self._live.metrics, **metrics}
        self._waiting.append((progress.steps, {"epoch": progress.epoch, **metrics}))
        if self._saves is not None:
            self._tell_trackers()

    def saved_model(self) -> None:
        """Note that the model was written to the job's directory."""
        self._ending.model = str(self._job.model_dir)

    def __enter__(self) -> RunView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell the trackers of the end, under ``smddp.run``."""
        assert self._saves is not None
        self._tell_trackers()
        self._ending.end("stopped" if self._saves.was_stopped else "finished" if error is None else "failed")

    def _show_line(self) -> None:
        if self._live is not None and self._ending.line is None:
            self._ending.line = shown_on_terminal(LiveLine(self._live))

    def _newest_checkpoint(self) -> int | None:
        newest = None if self._saves is None else self._saves.newest
        return None if newest is None else newest[0]

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
    line: TerminalLine | None = None

    def hide_line(self) -> None:
        """Leave the terminal to others."""
        if self.line is not None:
            self.line.stop()
            self.line = None

    def end_without_run(self, error_before: object) -> None:
        """Tell the trackers at the end of a script; Python keeps the error that ended it, if one did.

        Args:
            error_before: What it kept when the run began, such as that of another cell of a notebook.
        """
        error = getattr(sys, "last_value", None)
        self.end("finished" if error is None or error is error_before else "failed")

    def end(self, status: Status) -> None:
        """Tell the trackers, once."""
        if not self.is_over and os.getpid() == self.process:  # a process that the script forked ends for itself
            self.is_over = True
            self.hide_line()
            self.trackers.finish(status, self.model)
