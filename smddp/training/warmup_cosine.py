"""The schedule that most trainings want: the learning rate rises, then falls along a cosine, by optimizer steps."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(optimizer: Optimizer, warmup_steps: int, total_steps: int, final_ratio: float = 0.0) -> LambdaLR:
    """Return a schedule with a linear warm-up and a cosine decay, for one step an optimizer step.

    With w = ``warmup_steps``, step s (from 0) of the warm-up has (s + 1) / (w + 1) of the optimizer's learning rate,
    step w all of it, and from there it falls along half a cosine to ``final_ratio`` of it at ``total_steps``, where it
    stays. The rate depends on the step alone, so that a resume is exact. Where a resumed script has other numbers here,
    or another learning rate, ``CheckpointPolicy.on_change`` says which ones hold.

    Args:
        optimizer: Each of its groups has its own learning rate to begin with.
        warmup_steps: From 0, which is no warm-up.
        total_steps: Optimizer steps of the whole training, more than those of the warm-up.
        final_ratio: Of the learning rate, from 0 to 1.

    Raises:
        ValueError: A number is out of its range.

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
    """The ratio of `warmup_cosine` at a step: an object, as a checkpoint has the attributes of one, and no function's.

    Args:
        warmup_steps: From 0.
        total_steps: More than those.
        final_ratio: From 0 to 1.
    """

    def __init__(self, warmup_steps: int, total_steps: int, final_ratio: float) -> None:
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.final_ratio = final_ratio

    def __call__(self, step: int) -> float:
        """Return the part of the learning rate that a step has."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2
