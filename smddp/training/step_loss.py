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
    """Collects the losses of the micro-batches of a step where they are asked for, and looks at the weights.

    Args:
        membership: The ranks; all call ``mean`` at the same steps.
        module: The model.
    """

    def __init__(self, membership: Membership, module: nn.Module) -> None:
        self._membership = membership
        self._module = module
        self._collected: list[Tensor] = []
        self._warned = False

    def restart(self) -> None:
        """Forget micro-batches of a step that was never finished."""
        self._collected.clear()

    def add(self, loss: Tensor, weight: Tensor | float, *, collect: bool) -> None:
        """Take the loss of a micro-batch.

        Args:
            loss: A scalar.
            weight: As `OptimizerStep.backward_and_step` has it.
            collect: Whether ``mean`` will be asked for after this step.
        """
        if collect:
            self._collected.append(loss.detach() * weight)

    def mean(self, factor: Tensor | None = None) -> float:
        """Return the mean over the step's samples on all ranks; collective.

        Args:
            factor: What the sum of this rank's weighted losses is to be multiplied by, so that the mean over the ranks
                is that of the items; None where the weights have a mean of 1.
        """
        losses = torch.stack([loss.double() for loss in self._collected])
        self._collected.clear()
        return self._over_ranks(losses.mean() if factor is None else losses.sum() * factor)

    def check_finite(self, step: int, loss: float) -> None:
        """See, where the loss of a step is not finite, whether the model can still learn.

        Args:
            step: Optimizer steps taken.
            loss: The mean over the ranks.

        Raises:
            TrainingDivergedError: Weights are not finite either.
        """
        if math.isfinite(loss):
            return
        self.check_weights(step)
        if not self._warned and self._membership.cluster.is_main:
            self._warned = True
            logger.warning("the loss of step %d is %s; the weights are finite, and training goes on", step, loss)

    def check_weights(self, step: int) -> None:
        """See that all weights are finite; they are the same on all ranks.

        Args:
            step: Optimizer steps taken.

        Raises:
            TrainingDivergedError: Some are not: no step can mend that.
        """
        names, largest = [], []
        for name, weight in self._module.named_parameters():
            if weight.numel() and (weight.is_floating_point() or weight.is_complex()):
                names.append(name)
                largest.append(torch.linalg.vector_norm(weight.detach(), float("inf")).float())
        # Stacked where the first one lies: the CPU waits for the GPU once, not once a weight.
        together = [norm.to(largest[0].device) for norm in largest]
        finite = torch.isfinite(torch.stack(together)).tolist() if together else []
        broken = [name for name, is_finite in zip(names, finite, strict=True) if not is_finite]
        if broken:
            more = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
            raise TrainingDivergedError(
                f"at step {step} the model's {', '.join(broken[:_SHOWN])}{more} "
                f"{'has' if len(broken) == 1 else 'have'} values that are not finite: no further step can mend that. "
                "Nothing of it was saved; the checkpoints there are were saved before. Lower the learning rate, set "
                "clip_norm, or look for NaN in the data"
            )

    def _over_ranks(self, value: Tensor) -> float:
        return sum_over_ranks(value, self._membership).item() / self._membership.cluster.world_size
