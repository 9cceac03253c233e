"""One optimizer step: backward over its micro-batches, unscale, clip, step, schedule, and clear the gradients.

It is the hot path of training, and written flat: no allocation, no logging, no waiting for the GPU that PyTorch's
own loop would not do. It knows neither data nor ranks.
"""

from __future__ import annotations

from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class OptimizerStep:
    """The optimizer with what belongs around its step.

    Args:
        optimizer: The optimizer.
        scheduler: Stepped after each optimizer step that was really taken.
        scaler: fp16's loss scaler, which skips a step whose gradients overflowed.
        accumulate: Micro-batches a step.
        clip_norm: The largest norm of all gradients together, or None.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._scaler = scaler
        self._accumulate = accumulate
        self._clip_norm = clip_norm
        self._parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._micro_batch = 0

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def micro_batch(self) -> int:
        """How many micro-batches of the step under way were taken."""
        return self._micro_batch

    @property
    def accumulates(self) -> bool:
        """Whether the next micro-batch only adds to the gradients, and another one follows before the step."""
        return self._micro_batch + 1 < self._accumulate

    def restart(self) -> None:
        """Forgets micro-batches of a step that was never finished."""
        self._micro_batch = 0
        self._optimizer.zero_grad(set_to_none=True)

    def backward_and_step(self, loss: Tensor, weight: float = 1.0) -> bool:
        """Adds the gradients of one micro-batch's mean loss; after the last one, takes the step.

        Args:
            loss: A scalar.
            weight: How much it counts beside the other micro-batches of the step, those of other ranks included.

        Returns:
            Whether the optimizer step is done.
        """
        if self._accumulate > 1:
            loss = loss / self._accumulate
        if weight != 1.0:
            loss = loss * weight
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self._micro_batch += 1
        if self._micro_batch < self._accumulate:
            return False
        self._micro_batch = 0

        if self._clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            clip_grad_norm_(self._parameters, self._clip_norm)
        if self._scaler is None:
            self._optimizer.step()
            applied = True
        else:
            applied = self._scaled_step(self._scaler)
        if self._scheduler is not None and applied:
            self._scheduler.step()
        self._optimizer.zero_grad(set_to_none=True)
        return True

    def _scaled_step(self, scaler: GradScaler) -> bool:
        """The optimizer's step under a loss scaler; False if it was skipped, which a lower scale tells."""
        before = scaler.get_scale()
        scaler.step(self._optimizer)
        scaler.update()
        return scaler.get_scale() >= before
