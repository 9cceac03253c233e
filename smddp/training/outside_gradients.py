"""Gradients of the weights from outside of ``trainer.step``, to which the backward pass of a step adds its own.

They may be intended, such as those of a second loss, so they cause a warning. The other causes are a script's own
``backward`` of the same loss, and the step of another trainer whose loss passes through this model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from smddp.dtensor import local_values
from smddp.training.optimizer_step import OptimizerStep

logger = logging.getLogger(__name__)


class OutsideGradients:
    """Warns once, if ``logs``, of gradients that exist before the first backward pass of a step.

    All weights are looked at before the first step, and one weight, which had a gradient in it, before each later one:
    the steps must cost nothing.
    """

    def __init__(self, step: OptimizerStep, *, logs: bool) -> None:
        self._step, self._logs = step, logs
        self._watched: Sequence[Tensor] = step.parameters()
        step.before_clearing.append(self._choose)

    def look(self) -> None:
        """Look for gradients. Call it before the first backward pass of a step."""
        for weight in self._watched:
            if weight.grad is not None:
                self._tell()
                return

    def _choose(self) -> None:
        self._step.before_clearing.remove(self._choose)
        self._watched = [weight for weight in self._watched if weight.grad is not None][:1]

    def _tell(self) -> None:
        found = [local_values(weight.grad) for weight in self._watched if weight.grad is not None]
        self._watched = ()
        if self._logs and any(bool(gradient.norm()) for gradient in found):
            logger.warning(
                "the weights have gradients from outside of trainer.step(), which adds its own to them. They come from "
                "a backward() of the script, or from the step of another trainer whose loss passes through this model. "
                "If they are not intended, remove the backward(), or call model.requires_grad_(False) during that step"
            )
