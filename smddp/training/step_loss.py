"""The loss of one optimizer step over all ranks, and the check that the weights are still finite."""

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
    """Collect the losses of the micro-batches of a step, on request. All ranks call ``mean`` at the same steps."""

    def __init__(self, membership: Membership, module: nn.Module) -> None:
        self._membership = membership
        self._module = module
        self._collected: list[Tensor] = []
        self._warned = False

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self._collected.clear()

    def add(self, loss: Tensor, weight: Tensor | float, *, collect: bool) -> None:
        """Add the loss of a micro-batch, a scalar, with its weight in `OptimizerStep.backward_and_step`.

        ``collect`` says that ``mean`` will be called after this step.
        """
        if collect:
            self._collected.append(loss.detach() * weight)

    def mean(self, factor: Tensor | None = None) -> float:
        """Return the mean over the step's samples on all ranks; collective.

        ``factor`` multiplies the sum of this rank's weighted losses, so that the mean over the ranks is the mean over
        all items. It is None if the weights have a mean of 1.
        """
        losses = torch.stack([loss.double() for loss in self._collected])
        self._collected.clear()
        return self._over_ranks(losses.mean() if factor is None else losses.sum() * factor)

    def check_finite(self, step: int, loss: float) -> None:
        """Raise TrainingDivergedError if neither the loss, a mean over the ranks, nor the weights are finite."""
        if math.isfinite(loss):
            return
        self.check_weights(step)
        if not self._warned and self._membership.cluster.is_main:
            self._warned = True
            logger.warning("the loss of step %d is %s; the weights are finite, and training goes on", step, loss)

    def check_weights(self, step: int) -> None:
        """Raise TrainingDivergedError if some weights are not finite; they are the same on all ranks."""
        names, largest = [], []
        for name, weight in self._module.named_parameters():
            if weight.numel() and (weight.is_floating_point() or weight.is_complex()):
                names.append(name)
                largest.append(torch.linalg.vector_norm(weight.detach(), float("inf")).float())
        # Stacked on the first weight's device: the CPU waits for the GPU once, not once a weight.
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
