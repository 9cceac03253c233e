"""What a training shows: the metric line of a step, the step at which the loop will end, and the profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from smddp.job import Job
from smddp.metrics import Profile
from smddp.metrics.device_use import peak_memory
from smddp.metrics.metric_lines import StepRate
from smddp.metrics.profile import StepProfiler
from smddp.metrics.tracking import Tracker
from smddp.training.active_runs import OpenRun
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.least_memory import LeastMemory
from smddp.training.run_view import RunView
from smddp.training.step_loss import LossSpikes
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData

_LOG_EVERY = 50
"""Optimizer steps from one set of metrics to the next, by default."""


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
        for part, report in self._inner.items():
            report.begin(run, self._view, part)

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
