"""One optimizer step: backward over its micro-batches, unscale, clip, step, schedule, and clear the gradients.

This is the hot path of training: no allocation, no logging, and no wait for the GPU beyond those of PyTorch's own loop.
It knows neither data nor ranks, but that the ranks may each have a piece of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from smddp.dtensor import local_values, whole_values
from smddp.errors import TrainingDivergedError
from smddp.metrics import StepTimer
from smddp.training.nonfinite import NonfiniteGuard
from smddp.training.step_loss import refused_backward

ScheduleEach = Literal["step", "epoch"]

_LEAST_SCALE = 2.0**-24
"""Float16's smallest number. A lower loss scale makes gradients of 1 zero; from the first scale, 2**16, it takes 41
skipped steps."""


class Steppable(Protocol):
    """An object that advances once each optimizer step, such as a learning rate schedule."""

    def step(self) -> None:
        """Advance by one step."""


class EpochSchedules:
    """Step schedules at the end of each epoch in which the optimizer took a step.

    fp16's loss scaler may skip all steps of a short first epoch; a schedule stepped then would warn and be one epoch
    ahead. The state is part of each checkpoint, so an epoch that a resume continues counts once. The schedules keep
    their own.
    """

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        self._schedulers = tuple(schedulers)
        self._has_stepped = False

    def step(self) -> None:
        """Record that the optimizer has taken a step."""
        self._has_stepped = True

    def end_epoch(self) -> None:
        """Step the schedules if the optimizer has taken a step in this epoch."""
        if self._has_stepped:
            for scheduler in self._schedulers:
                scheduler.step()
        self._has_stepped = False

    def state_dict(self) -> dict[str, bool]:
        """Return whether the optimizer has taken a step in this epoch."""
        return {"has_stepped": self._has_stepped}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Continue the epoch that was under way."""
        self._has_stepped = state["has_stepped"]


class OptimizerStep:
    """Step several optimizers together, with gradient accumulation, loss scaling, clipping and schedules.

    The guard may drop a step. ``tells_applied`` says that ``applied`` will be read, which with a scaler may wait for
    the GPU. Schedules advance only after a step that was applied.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        schedulers: Sequence[Steppable] = (),
        scaler: GradScaler | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        guard: NonfiniteGuard | None = None,
        tells_applied: bool = False,
        timer: StepTimer | None = None,
    ) -> None:
        self._timer = timer
        self.applied = False
        """Whether the last step was applied: neither skipped by the scaler nor dropped by the guard."""
        self._optimizers = tuple(optimizers)
        self._schedulers = tuple(schedulers)
        self._scaler = scaler
        self.accumulate = accumulate
        """Micro-batches a step."""
        self._clip_norm = clip_norm
        self._clip_value = clip_value
        self._guard = guard
        self._looks_at_gradients = guard is not None or clip_norm is not None or clip_value is not None
        self.correction: Callable[[int], Tensor | None] | None = None
        """Return the factor for the gradients of a step of so many micro-batches; None for no correction."""
        self.before_clearing: list[Callable[[], None]] = []
        """Called after each step, while its gradients exist. Each may remove itself; an optimizer's hook may not."""
        self.micro_batch = 0
        """Micro-batches taken of the step under way."""
        self._norm: Tensor | None = None
        self._stepped = False
        # Fused optimizers read the scaler's verdict themselves, and run their hooks even for a skipped step: then only
        # a lower scale shows the skip.
        must_tell = tells_applied or bool(self._schedulers)
        self._asks_scale = must_tell and any(
            getattr(each, "_step_supports_amp_scaling", False) for each in self._optimizers
        )
        if scaler is not None and must_tell:
            for optimizer in self._optimizers:
                optimizer.register_step_post_hook(self._note_step)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self._optimizers[0].param_groups[0]["lr"])

    def gradient_norm(self) -> float | None:
        """Return the norm of the last step's gradients before clipping; None without ``clip_norm`` or a guard.

        It waits for the GPU.
        """
        return None if self._norm is None else float(self._norm)

    def check_scale(self, step: int) -> None:
        """Raise TrainingDivergedError if the loss scaler skips step after step. It waits for the GPU.

        The ranks average their gradients, so the scale is the same on all of them.
        """
        if self._scaler is None or (scale := self._scaler.get_scale()) >= _LEAST_SCALE:
            return
        raise TrainingDivergedError(
            f"at step {step} the loss scale is {scale:.3g}: the last steps had gradients of NaN or inf at every scale, "
            "so the loss scaler skipped them, and the weights have not changed since. Look for NaN in the backward "
            'pass, such as that of sqrt(0): Trainer(precision="fp32", on_nonfinite="raise") names the first parameter '
            "that gets it. If values are only too large for float16, train in bf16"
        )

    @property
    def accumulates(self) -> bool:
        """Whether the next micro-batch only adds to the gradients, because another one of the same step follows."""
        return self.micro_batch + 1 < self.accumulate

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups; a group may be added during training."""
        return [weight for each in self._optimizers for group in each.param_groups for weight in group["params"]]

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self.micro_batch = 0
        self._clear_gradients()
        if self._guard is not None:
            self._guard.restart()

    def backward_and_step(self, loss: Tensor, weight: Tensor | float = 1.0) -> bool:
        """Add the gradients of one micro-batch's mean loss; after the last one, take the step and return True.

        ``weight`` is the loss's weight relative to the other micro-batches of the step, on all ranks.
        """
        if self._guard is not None:
            self._guard.add(loss)
        if self.accumulate > 1:
            loss = loss / self.accumulate
        if isinstance(weight, Tensor) or weight != 1.0:
            loss = loss * weight
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if (refused := refused_backward(error)) is None:
                raise
            raise refused from error
        if self._timer is not None:
            self._timer.mark("backward")
        self.micro_batch += 1
        if self.micro_batch < self.accumulate:
            return False
        self._step()
        return True

    def finish_window(self, mean_count: float) -> None:
        """Take the step with the micro-batches so far; ``mean_count`` is their number, as a mean over the ranks."""
        assert self.micro_batch > 0, "there is no gradient"
        self._step(mean_count)

    def _step(self, mean_count: float | None = None) -> None:
        # Order: 1. correct the gradients to the step's mean, 2. unscale them, 3. let the guard check them, 4. clip,
        # 5. step. So the norm that is checked, clipped and shown is the true gradient's. A schedule advances only if
        # the optimizers did.
        micro_batches, self.micro_batch = self.micro_batch, 0
        if self.correction is not None or mean_count is not None:
            self._correct_gradients(micro_batches, mean_count)
        if self._looks_at_gradients and not self._prepare_gradients():
            self.applied = False
        elif self._scaler is None:
            for optimizer in self._optimizers:
                optimizer.step()
            self.applied = True
        else:
            self.applied = self._scaled_step(self._scaler)
        if self.applied:
            for scheduler in self._schedulers:
                scheduler.step()
        for look in tuple(self.before_clearing):  # each may take itself out
            look()
        self._clear_gradients()
        if self._timer is not None:
            self._timer.mark("optimizer")

    def _correct_gradients(self, micro_batches: int, mean_count: float | None) -> None:
        """Scale the gradients to the mean over the step's items, or over its actual micro-batches on all ranks."""
        factor: Tensor | float | None = None if self.correction is None else self.correction(micro_batches)
        if factor is None and mean_count is not None:
            factor = self.accumulate / mean_count
        if factor is not None:
            gradients = [local_values(weight.grad) for weight in self.parameters() if weight.grad is not None]
            torch._foreach_mul_(gradients, factor)

    def _prepare_gradients(self) -> bool:
        """Unscale and clip the gradients; return False if the guard drops them."""
        scaler, weights = self._scaler, self.parameters()
        if scaler is not None:
            for optimizer in filter(_has_gradients, self._optimizers):
                scaler.unscale_(optimizer)
        groups = _by_mesh(weights)
        if self._guard is not None or (self._clip_norm is not None and len(groups) > 1):
            norms = [
                nn.utils.get_total_norm([each.grad for each in group if each.grad is not None]) for group in groups
            ]
            norm = (
                norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(list(map(whole_values, norms))))
            )
            self._norm = whole_values(norm)
            if self._guard is not None and not self._guard.accepts(self._norm):
                if scaler is not None:
                    scaler.update(scaler.get_scale())  # unchanged: nothing overflowed
                return False
            if self._clip_norm is not None:
                for group in groups:
                    nn.utils.clip_grads_with_norm_(group, self._clip_norm, norm)
        elif self._clip_norm is not None:
            self._norm = whole_values(clip_grad_norm_(weights, self._clip_norm))
        if self._clip_value is not None:
            clip_grad_value_(weights, self._clip_value)
        return True

    def _clear_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _scaled_step(self, scaler: GradScaler) -> bool:
        """Step the optimizers under a loss scaler; return False for a skipped step, if the caller must know."""
        before = scaler.get_scale() if self._asks_scale else 0.0  # waits for the GPU
        scaled = [optimizer for optimizer in self._optimizers if _has_gradients(optimizer)]
        for optimizer in self._optimizers:
            if optimizer not in scaled:
                optimizer.step()  # it has no gradients, and the scaler would refuse it
        self._stepped = not scaled
        for optimizer in scaled:
            scaler.step(optimizer)
        if scaled:
            scaler.update()
        return scaler.get_scale() >= before if self._asks_scale else self._stepped

    def _note_step(self, *_: Any) -> None:
        self._stepped = True


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(weight.grad is not None for group in optimizer.param_groups for weight in group["params"])


def _by_mesh(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group weights with gradients by their mesh: PyTorch takes the norm over one mesh at a time."""
    groups: dict[Any, list[Tensor]] = {}
    for weight in weights:
        if weight.grad is not None:
            groups.setdefault(getattr(weight.grad, "device_mesh", None), []).append(weight)
    return list(groups.values()) or [[]]
