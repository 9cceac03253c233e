"""A common schedule: the learning rate rises linearly, then falls along a cosine, by optimizer steps."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(optimizer: Optimizer, warmup_steps: int, total_steps: int, final_ratio: float = 0.0) -> LambdaLR:
    """Return a schedule with a linear warm-up and a cosine decay; step it once each optimizer step.

    With w = ``warmup_steps``, step s of the warm-up, counted from 0, uses (s + 1) / (w + 1) of the optimizer's learning
    rate, and step w uses all of it. Then the rate falls along half a cosine to ``final_ratio`` at ``total_steps``, and
    stays there. It depends on the step alone, so a resume is exact. If a resumed script passes other numbers, or
    another learning rate, ``CheckpointPolicy.on_change`` decides which ones hold.

    Args:
        optimizer: Each of its groups may have its own initial learning rate.
        warmup_steps: From 0, for no warm-up.
        total_steps: Optimizer steps of the whole training, more than ``warmup_steps``.
        final_ratio: Fraction of the learning rate at the end, from 0 to 1.

    Raises:
        ValueError: A number is out of range.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
        >>> scheduler = warmup_cosine(optimizer, warmup_steps=1, total_steps=5, final_ratio=0.1)
        >>> rates = []
        >>> for _ in range(6):
        ...     rates.append(round(optimizer.param_groups[0]["lr"], 3))
        ...     optimizer.step()
        ...     scheduler.step()
        >>> rates
        [0.2, 0.4, 0.347, 0.22, 0.093, 0.04]
    """
    if type(warmup_steps) is not int or warmup_steps < 0:
        raise ValueError(f"warmup_steps={warmup_steps!r}: give a number of optimizer steps, 0 or more")
    if type(total_steps) is not int or total_steps <= warmup_steps:
        raise ValueError(
            f"total_steps={total_steps!r}: give the optimizer steps of the whole training, more than "
            f"warmup_steps={warmup_steps}"
        )
    if type(final_ratio) not in (int, float) or not 0 <= final_ratio <= 1:
        raise ValueError(f"final_ratio={final_ratio!r}: give a part of the learning rate, from 0 to 1")

    return LambdaLR(optimizer, WarmupCosine(warmup_steps, total_steps, final_ratio))


class WarmupCosine:
    """The ratio of `warmup_cosine` at a step.

    It is an object and no function, because LambdaLR saves only the attributes of objects.
    """

    def __init__(self, warmup_steps: int, total_steps: int, final_ratio: float) -> None:
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.final_ratio = final_ratio

    def __call__(self, step: int) -> float:
        """Return the ratio of the learning rate at a step."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2
