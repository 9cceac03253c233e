"""The loss of one optimizer step over all ranks, and what it says of the model: whether training can go on."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from smddp.distributed import Membership, sum_over_ranks
from smddp.errors import TrainingDivergedError

logger = logging.getLogger(__name__)

_SHOWN = 3


class StepLoss:
    """Collects the losses of the micro-batches of a step where they are asked for, and else keeps the last one.

    Args:
        membership: The ranks; all call ``mean`` and ``check_finite`` at the same steps.
        module: The model.
    """

    def __init__(self, membership: Membership, module: nn.Module) -> None:
        self.last: Tensor | None = None
        """The loss of the last micro-batch of this rank; None before the first."""
        self._membership = membership
        self._module = module
        self._collected: list[Tensor] = []
        self._warned = False

    def restart(self) -> None:
        """Forgets micro-batches of a step that was never finished."""
        self._collected.clear()

    def add(self, loss: Tensor, weight: float, *, collect: bool) -> None:
        """Takes the loss of a micro-batch.

        Args:
            loss: A scalar.
            weight: As `OptimizerStep.backward_and_step` has it.
            collect: Whether ``mean`` will be asked for after this step.
        """
        self.last = loss
        if collect:
            self._collected.append(loss.detach() * weight)

    def mean(self) -> float:
        """Returns the mean over the samples of the step, those of all ranks; collective."""
        losses = torch.stack([loss.double() for loss in self._collected])
        self._collected.clear()
        return self._over_ranks(losses.mean())

    def check_finite(self, step: int, loss: float | None = None) -> None:
        """Sees whether the model can still learn; collective.

        Only a loss that is not finite is reason to look at the weights.

        Args:
            step: Optimizer steps taken.
            loss: The mean over the ranks, where it is known.

        Raises:
            TrainingDivergedError: Weights are not finite either: no step can mend that.
        """
        if self.last is None:
            return
        value = self._over_ranks(self.last.detach().double()) if loss is None else loss
        if math.isfinite(value):
            return
        broken = [name for name, weight in self._module.named_parameters() if not bool(torch.isfinite(weight).all())]
        if broken:
            more = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
            raise TrainingDivergedError(
                f"the loss of step {step} is {value}, and the model's {', '.join(broken[:_SHOWN])}{more} "
                f"{'has' if len(broken) == 1 else 'have'} values that are not finite: no further step can mend that. "
                "Nothing of it was saved; the checkpoints there are were saved before. Lower the learning rate, set "
                "clip_norm, or look for NaN in the data"
            )
        if not self._warned and self._membership.cluster.is_main:
            self._warned = True
            logger.warning("the loss of step %d is %s; the weights are finite, and training goes on", step, value)

    def _over_ranks(self, value: Tensor) -> float:
        return sum_over_ranks(value, self._membership).item() / self._membership.cluster.world_size
