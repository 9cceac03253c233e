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

_LOOKS_AT_ZEROS = 10


class OutsideGradients:
    """Warns once, if ``logs``, of gradients that exist before the first backward pass of a step.

    Before the first step it looks at all weights. Before each later step it looks at one, the first weight that had a
    gradient in the first step: a step costs one comparison, and gradients of other weights alone are not noticed.
    """

    def __init__(self, step: OptimizerStep, *, logs: bool) -> None:
        self._step, self._logs = step, logs
        self._watched: Sequence[Tensor] = step.parameters()
        self._looks_at_zeros = _LOOKS_AT_ZEROS
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
        if any(bool(gradient.norm()) for gradient in found):
            self._watched = ()
            if self._logs:
                logger.warning(
                    "the weights have gradients from outside of trainer.step(), which adds its own to them. They come "
                    "from a backward() of the script, or from the step of another trainer whose loss passes through "
                    "this model. If they are not intended, remove the backward(), or call model.requires_grad_(False) "
                    "during that step"
                )
            return
        # Zeros, of an optimizer that sets no gradient to None: each look waits for the GPU.
        self._looks_at_zeros -= 1
        if not self._looks_at_zeros:
            self._watched = ()
