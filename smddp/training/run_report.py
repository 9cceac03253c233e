"""What a training shows: metric lines in the log, a live line on a terminal, calls to the trackers, and the profile.

`RunReport` measures one model's training on all ranks. `RunView` is rank 0's, and decides when a tracker is told of
metrics, checkpoints and the end.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import torch

from smddp.display_text import counted, duration, shown_path
from smddp.job import Job
from smddp.metrics import Profile
from smddp.metrics.device_use import peak_memory
from smddp.metrics.metric_lines import LiveLine, LiveRun, StepRate, report, shown_on_terminal
from smddp.metrics.profile import StepProfiler
from smddp.metrics.tracking import JsonLines, Status, TrackedRun, Tracker, TrackerGroup
from smddp.process.heartbeat import Heartbeat
from smddp.process.terminal_line import TerminalLine, is_watched, make_room_for_other_process
from smddp.training.active_runs import OpenRun, active_runs
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.least_memory import LeastMemory
from smddp.training.progress import Progress
from smddp.training.step_loss import LossSpikes
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData

logger = logging.getLogger(__name__)

_LOG_EVERY = 50
"""Optimizer steps from one set of metrics to the next, by default."""

_LINE_SECONDS = 1.0
"""Seconds from one metric line in the log to the next at least, if the lines are paced."""


class RunReport:
    """Measure the training of one model, and show it; rank 0 has the view. All ranks call its methods.

    ``inner`` are the reports of inner Trainers, by their names in ``state``: their views are parts of this one's run.
    """

    def __init__(
        self,
        job: Job,
        model: TrainedModel,
        data: TrainingData,
        *,
        name: str | None,
        log_every: int | None,
        trackers: Sequence[Tracker],
        progress: bool,
        profile: Profile | None,
        policy: CheckpointPolicy,
        inner: Mapping[str, RunReport],
    ) -> None:
        self._model = model
        self._data = data
        self._inner = inner
        self._is_main = job.cluster.is_main
        self._view = RunView(
            job, model.progress, trackers, device=model.device, name=name, live=progress, policy=policy
        )
        self._rate = StepRate()
        self._spikes = LossSpikes()
        self._is_paced = log_every is None
        self.log_every = log_every or _LOG_EVERY
        """Optimizer steps from one metric line to the next."""
        if job.max_steps is not None:  # a trial
            self.log_every = min(self.log_every, -(-job.max_steps // 2))  # so that there is something to see
            if self._is_main and model.moves:  # else the script may use several devices
                self._memory = LeastMemory(model, job.cluster.world_size)  # kept: it counts while the Trainer lives
        self._profiler: StepProfiler | None = None
        if profile is not None and (self._is_main or profile.every_rank):
            directory = job.output_data_dir / (name or "") / "profile"
            self._profiler = StepProfiler(profile, directory, rank=job.cluster.rank)

    def begin(self, run: OpenRun, outer: RunView | None = None, name: str = "") -> None:
        """Begin to show the run, once the step to continue from is known; as part ``name`` of an outer Trainer's."""
        if not self._is_main:
            self._view.begin_beside_main(run)
            return
        if outer is not None:
            self._view.belong_to(outer, name)
        self._view.begin(run)
        for part, inner in self._inner.items():
            inner.begin(run, self._view, part)

    def after_step(self) -> None:
        """Show the line of the last step, if due.

        Raise TrainingDivergedError if neither its loss nor the weights are finite.
        """
        step = self._model.progress.steps
        if self._profiler is not None:
            self._profiler.after_step(step)
        if step % self.log_every == 0:
            self._show_step()

    def before_first_step(self) -> None:
        """Start the profiler, if due."""
        if self._profiler is not None:
            self._profiler.after_step(self._model.progress.steps)

    def restart(self) -> None:
        """Measure the rate from the current step on."""
        self._rate.restart(self._model.progress.steps)

    def aim(self, *, epochs: int = 0, steps: int | None = None, most: float = math.inf) -> None:
        """Tell the view at which step this loop ends, if known.

        Pass ``epochs`` for a loop over epochs, or ``steps`` for a loop over steps; ``most`` is an upper bound in steps.
        """
        order, progress = self._data.order, self._model.progress
        if steps is None and order is not None and order.steps_per_epoch is not None:
            left = (epochs - progress.epoch) * order.steps_per_epoch - order.consumed // order.global_batch
            steps = int(min(progress.steps + max(left, 0), most))
        self._view.aim(steps, None if order is None else order.global_batch, epochs or None)

    def hide_line(self) -> None:
        """Hide the live line until the next loop, and end the profile."""
        self._view.hide_line()
        if self._profiler is not None:
            self._profiler.stop()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Show metrics of the script."""
        if self._is_main:
            self._view.show(metrics)

    def saved_model(self) -> None:
        """Remember that the model was written to the job's model directory."""
        self._view.saved_model()

    def _show_step(self) -> None:
        model = self._model
        loss, step = model.mean_loss(), model.optimizer_step
        timing = {}
        if model.timer is not None:
            timing = model.timer.lap() | {"peak_memory_gib": peak_memory(model.device) / 2**30}
        if self._is_main:
            metrics = {"loss": loss, "lr": step.learning_rate}
            if (norm := step.gradient_norm()) is not None:
                metrics["grad_norm"] = norm
            if (order := self._data.order) is not None:
                metrics["samples_per_second"] = self._rate.lap(model.progress.steps) * order.global_batch
            self._view.show(metrics | timing, paced=self._is_paced)
            self._spikes.note(model.progress.steps, loss)
        model.check_loss(loss)


class RunView:
    """Show one run, from its first metric line to its end.

    It may outlive the trainer, so it keeps no reference to it. ``metrics.jsonl`` is written beside the user's trackers.
    Making it raises TypeError for an object that is not a tracker.
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
        self._epochs: int | None = None
        self._held_line: Callable[[], None] | None = None
        self._next_line = -math.inf
        self._until_first_line = Heartbeat(lambda: f"training, at step {progress.steps}")
        self._trackers = TrackerGroup([JsonLines(), *trackers])
        self._ending = _Ending(trackers=self._trackers, process=os.getpid())
        self._open_run: OpenRun | None = None
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
            if policy.every != "auto":  # else only rank 0's clock knows when the next one is due
                self._live.checkpoint_seconds, self._live.checkpoint_steps = policy.seconds, policy.every

    @property
    def run(self) -> str:
        """The id that distinguishes this run from others."""
        return self._run or self._progress.training_id

    def belong_to(self, other: RunView, name: str) -> None:
        """Make this view a part of another run, with an id and files of its own.

        The trainer's own ``name=`` takes precedence.
        """
        self._run = uuid.uuid5(uuid.NAMESPACE_OID, f"{other.run}/{name}").hex[:12]
        self._name = self._name or name

    def begin(self, run: OpenRun) -> None:
        """Start the trackers, once the step to continue from is known."""
        self._open_run = run
        step = run.checkpointer.loaded_step
        self._trackers.start(TrackedRun(id=self.run, step=step, job=self._job, part=self._name))
        self._tell_trackers()
        if not active_runs.end_after_saves(self):
            weakref.finalize(self, self._ending.end_without_run, getattr(sys, "last_value", None))
        self._show_line()

    def begin_beside_main(self, run: OpenRun) -> None:  # noqa: ARG002
        """Leave rank 0's live line on the same terminal alone; for the other ranks."""
        if self._live is not None and is_watched(sys.stderr):
            make_room_for_other_process()

    def aim(self, total: int | None, samples_a_step: int | None, epochs: int | None) -> None:
        """Begin a loop that ends at step ``total``, or after so many epochs; None for a number that is not known.

        Samples count over all ranks.
        """
        self._epochs = epochs
        if self._live is not None and self._open_run is not None:
            self._live.total, self._live.samples_a_step, self._live.epochs = total, samples_a_step, epochs
            self._show_line()
        if self.is_main and self._ending.line is None:
            self._until_first_line.start()

    def hide_line(self) -> None:
        """Hide the live line until the next loop. Log the metrics line held back, unless the run was stopped."""
        self._ending.hide_line()
        self._until_first_line.stop()
        if self._held_line is not None and not (self._open_run is not None and self._open_run.was_stopped):
            self._held_line()
        self._held_line = None

    @property
    def is_main(self) -> bool:
        """Whether this rank shows anything."""
        return self._job.cluster.is_main

    def show(self, metrics: Mapping[str, float], *, paced: bool = False) -> None:
        """Show the metrics of this step; if `paced`, log at most one such line a second.

        A paced line that comes too early is logged before the next line that is not paced, or when the loop rests,
        unless another paced line follows: so a job with fast epochs has its loss in the log, too.
        """
        self._until_first_line.stop()
        progress = self._progress
        line = partial(report, progress.steps, progress.epoch, metrics, epochs=self._epochs, trainer=self._name)
        is_early = paced and time.monotonic() < self._next_line
        if not paced and self._held_line is not None:
            self._held_line()
        self._held_line = line if is_early else None
        if not is_early:
            line()
        if paced and not is_early:
            self._next_line = time.monotonic() + _LINE_SECONDS
        if self._live is not None:
            self._live.metrics = {**self._live.metrics, **metrics}
        self._waiting.append((progress.steps, {"epoch": progress.epoch, **metrics}))
        if self._open_run is not None:
            self._tell_trackers()

    def saved_model(self) -> None:
        """Remember that the model was written to the job's model directory."""
        self._ending.model = str(self._job.model_dir)

    def __enter__(self) -> RunView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell the trackers that the run ends, under ``smddp.run``."""
        assert self._open_run is not None
        self.hide_line()
        self._tell_trackers()
        if (ledger := self._open_run.ledger) is not None:
            report(
                self._progress.steps,
                self._progress.epoch,
                ledger.account().metrics,
                epochs=self._epochs,
                trainer=self._name,
            )
        status: Status = "failed" if error is not None else "stopped" if self._open_run.was_stopped else "finished"
        if status == "finished":
            self._say_done()
        self._ending.end(status)

    def _say_done(self) -> None:
        progress, model, saved = self._progress, self._ending.model, self._newest_checkpoint()
        epochs = "" if self._epochs is None or not progress.epoch else f"{counted(progress.epoch, 'epoch')}, "
        logger.info(
            "done: %s%s in %s%s%s",
            epochs,
            counted(progress.steps, "step"),
            duration(progress.seconds),
            "" if saved is None else f"; saved step {saved}",
            "" if model is None else f"; model in {shown_path(model)}",
        )

    def _show_line(self) -> None:
        if self._live is not None and self._ending.line is None:
            self._ending.line = shown_on_terminal(LiveLine(self._live))

    def _newest_checkpoint(self) -> int | None:
        newest = None if self._open_run is None else self._open_run.checkpointer.newest_saved
        return None if newest is None else newest[0]

    def _tell_trackers(self) -> None:
        assert self._open_run is not None
        for step, metrics in self._waiting:
            self._trackers.log(step, metrics)
        self._waiting.clear()
        newest = self._open_run.checkpointer.newest_saved
        if newest is not None and newest != self._told_checkpoint:
            self._told_checkpoint = newest
            self._trackers.checkpoint(*newest)


@dataclass(slots=True, kw_only=True)
class _Ending:
    """The state that the end of a run needs. It outlives the view, in a finalizer."""

    trackers: TrackerGroup
    process: int
    model: str | None = None
    is_over: bool = False
    line: TerminalLine | None = None

    def hide_line(self) -> None:
        """Stop the live line, so that others can use the terminal."""
        if self.line is not None:
            self.line.stop()
            self.line = None

    def end_without_run(self, error_before: object) -> None:
        """Tell the trackers that the script ends.

        Python keeps the error that ended it in ``sys.last_value``; an ``error_before`` was there when the run began, as
        after a failed notebook cell, and does not count.
        """
        error = getattr(sys, "last_value", None)
        self.end("finished" if error is None or error is error_before else "failed")

    def end(self, status: Status) -> None:
        """Tell the trackers once, and only from the process that made them."""
        if not self.is_over and os.getpid() == self.process:  # a forked process does not end its parent's run
            self.is_over = True
            self.hide_line()
            self.trackers.finish(status, self.model)
