"""One model's part in a step: its losses, its gradients over the ranks, its optimizer step, its average.

It knows neither where the data comes from, nor what is saved or shown.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smddp.distributed import DDPOptions, Membership, PowerSGD, Replica
from smddp.training.ema import ExponentialMovingAverage
from smddp.training.item_weights import ItemWeights
from smddp.training.optimizer_step import OptimizerStep
from smddp.training.step_loss import StepLoss


class ModelStep:
    """Takes the optimizer steps of one model; all ranks call its methods at the same points.

    Args:
        module: The model, on its device.
        wrapped: The model in its precision.
        step: Its optimizers.
        membership: The ranks, over which it is replicated if there are several.
        device: Where the losses are.
        ema: The decay of the weights' average, or None for none.
        options: How the ranks average their gradients.

    Attributes:
        model: What to call in a forward pass.
        step: Its optimizers.
        loss: Its losses.
        average: The weights' average, or None.
    """

    def __init__(
        self,
        module: nn.Module,
        wrapped: nn.Module,
        step: OptimizerStep,
        membership: Membership,
        *,
        device: torch.device,
        ema: float | None,
        options: DDPOptions,
    ) -> None:
        self._module = module
        self.step = step
        self.loss = StepLoss(membership, module)
        self._items = ItemWeights(membership, device, step.accumulate)
        self.model = wrapped
        self._replica: Replica | None = None
        if membership.cluster.world_size > 1:
            accumulates = None if step.accumulate == 1 else lambda: step.accumulates
            self.model = self._replica = Replica(wrapped, membership, accumulates=accumulates, options=options)
        # After the replica, which has given all ranks rank 0's weights.
        self.average = None if ema is None else ExponentialMovingAverage(module, ema)

    @property
    def powersgd(self) -> PowerSGD | None:
        """What PowerSGD keeps from step to step, where it is the hook of several ranks."""
        return None if self._replica is None else self._replica.powersgd

    def restart(self) -> None:
        """Forget micro-batches of a step that was never finished."""
        self.step.restart()
        self.loss.restart()
        self._items.restart()

    def backward_and_step(self, loss: Tensor, share: float, *, items: Tensor | float | None, collect: bool) -> bool:
        """Take the loss of one micro-batch; with the last one, take the optimizer step.

        Args:
            loss: A scalar.
            share: How much it counts, by the order of the data; 0 if this rank only repeats a sample, to take part.
            items: How many items it is the mean of, or None.
            collect: Whether ``mean_loss`` will be asked for after this step.

        Returns:
            Whether that was the last micro-batch.

        Raises:
            ValueError: The gradients would not be averaged over the ranks, or ``items`` is not possible.
        """
        replica, step = self._replica, self.step
        if replica is not None and not replica.averages and not step.accumulates:
            raise ValueError(
                "the ranks' gradients would not be averaged: compute each loss by trainer.model(...), after the "
                "trainer.step() of the loss before it"
            )
        weight: Tensor | float = share
        if items is not None:
            step.correction = self._items.correction
            weight = self._items.weigh(items if share else 0)
        self.loss.add(loss, weight, collect=collect)
        is_done = step.backward_and_step(loss, weight)
        if is_done:
            self._after_step()
        return is_done

    def finish_window(self) -> None:
        """Take the optimizer step with the micro-batches that a loader's end left."""
        if self._replica is not None:
            self._replica.average_gradients()
        self.step.finish_window()
        self._after_step()

    def mean_loss(self) -> float:
        """Return the mean loss of the last step over the ranks; collective."""
        return self.loss.mean(self._items.loss_factor)

    def _after_step(self) -> None:
        if self._replica is not None:
            self._replica.averages = False
            self._replica.share_buffers()
        if self.average is not None and self.step.applied:
            self.average.update_parameters(self._module)
