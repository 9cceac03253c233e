"""The metric line of a step, and the step at which the loop will end, for the run's view."""

from __future__ import annotations

import math

import torch

from smddp.data.loaders import Loaders
from smddp.metrics import StepTimer
from smddp.metrics.device_use import peak_memory
from smddp.metrics.lines import StepRate
from smddp.training.active_runs import Progress
from smddp.training.model_step import ModelStep
from smddp.training.run_view import RunView


class StepReport:
    """Gather the numbers of a step for its metric line, which the view shows on rank 0. All ranks call ``show``."""

    def __init__(
        self,
        view: RunView,
        model_step: ModelStep,
        loaders: Loaders,
        *,
        progress: Progress,
        device: torch.device,
        timer: StepTimer | None,
    ) -> None:
        self._view = view
        self._model_step = model_step
        self._loaders = loaders
        self._progress = progress
        self._device = device
        self._timer = timer
        self._rate = StepRate()

    def restart(self) -> None:
        """Measure the rate from the current step on."""
        self._rate.restart(self._progress.steps)

    def aim(self, *, epochs: int = 0, steps: int | None = None, most: float = math.inf) -> None:
        """Tell the view at which step this loop ends, if known.

        Pass ``epochs`` for a loop over epochs, or ``steps`` for a loop over steps; ``most`` is an upper bound in steps.
        """
        order, progress = self._loaders.order, self._progress
        if steps is None and order is not None and order.steps_per_epoch is not None:
            left = (epochs - progress.epoch) * order.steps_per_epoch - order.consumed // order.global_batch
            steps = int(min(progress.steps + max(left, 0), most))
        self._view.aim(steps, None if order is None else order.global_batch)

    def show(self) -> None:
        """Show the line of the last step.

        Raise TrainingDivergedError if neither its loss nor the weights are finite.
        """
        step, loss = self._progress.steps, self._model_step.mean_loss()
        timing = {}
        if self._timer is not None:
            timing = self._timer.lap() | {"peak_memory_gib": peak_memory(self._device) / 2**30}
        if self._view.is_main:
            metrics = {"loss": loss, "lr": self._model_step.step.learning_rate}
            if (norm := self._model_step.step.gradient_norm()) is not None:
                metrics["grad_norm"] = norm
            if (order := self._loaders.order) is not None:
                metrics["samples_per_second"] = self._rate.lap(step) * order.global_batch
            self._view.show(metrics | timing)
        self._model_step.loss.check_finite(step, loss)
