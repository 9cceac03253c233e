"""Micro-batches that count by their items, such as tokens: the step's gradient is the mean over all items.

How many items a step has on all ranks is known only after its last micro-batch. So each loss is multiplied by its own
number of items over a fixed unit, and the gradients by what was missing, once, before they are clipped. The unit is a
power of two, so that it changes no bit of a result, and keeps fp16's scaled losses within their range.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smddp.distributed import Membership, sum_over_ranks


class ItemWeights:
    """The weights of one optimizer step after the other; all ranks call its methods at the same points.

    Args:
        membership: The ranks.
        device: Where the losses are.
        accumulate: Micro-batches an optimizer step.
    """

    def __init__(self, membership: Membership, device: torch.device, accumulate: int) -> None:
        self._membership = membership
        self._device = device
        self._accumulate = accumulate
        self._unit = 0.0
        self._total: Tensor | None = None
        self._weighed = 0
        self.loss_factor: Tensor | None = None
        """What the sum of the last step's weighted losses must be multiplied by; None if it had no weights."""

    def restart(self) -> None:
        """Forget micro-batches of a step that was never finished."""
        self._total, self._weighed = None, 0

    def weigh(self, items: Tensor | float) -> Tensor:
        """Return what the mean loss of a micro-batch is to be multiplied by.

        Args:
            items: How many it is the mean of, 0 or more. A tensor on the GPU is not waited for, but the first time.

        Raises:
            ValueError: It is a number that is negative or not finite, or a tensor of several.
        """
        if isinstance(items, Tensor):
            if items.numel() != 1:
                raise ValueError(f"weight has shape {list(items.shape)}: give one number, the items of the micro-batch")
        elif not 0 <= items < math.inf:
            raise ValueError(f"weight={items}: give how many items the loss is the mean of, 0 or more")
        count = torch.as_tensor(items, dtype=torch.float64, device=self._device).detach().reshape(())
        if not self._unit:
            largest = sum_over_ranks(count, self._membership).item()
            self._unit = 2.0 ** math.ceil(math.log2(max(largest, 1.0)))
        weight = count / self._unit
        self._total = weight if self._total is None else self._total + weight
        self._weighed += 1
        return weight.float()

    def correction(self, micro_batches: int) -> Tensor | None:
        """Return what the step's gradients must be multiplied by; None if no micro-batch of it was weighed.

        Args:
            micro_batches: How many the step has.

        Raises:
            ValueError: Only some of them were weighed.
        """
        total, weighed = self._total, self._weighed
        self.restart()
        self.loss_factor = None
        if total is None:
            return None
        if weighed != micro_batches:
            raise ValueError(
                f"{weighed} of the {micro_batches} micro-batches of this optimizer step had a weight: give one to "
                "trainer.step(loss, weight=...) with each of them, or with none"
            )
        ranks = self._membership.cluster.world_size
        # Without an item on any rank all gradients are zero, and stay so.
        everywhere = sum_over_ranks(total, self._membership).clamp(min=0.5 / self._unit)
        self.loss_factor = ranks / everywhere
        return (self._accumulate * self.loss_factor).float()
