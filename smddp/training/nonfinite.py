"""Handle an optimizer step whose gradients are not finite: NaN or inf in a loss, or in a backward pass.

1. The gradients are averaged over the ranks, so their norm, and the decision by it, is the same on all ranks.
2. Only if the norm is not finite do the ranks tell each other whose loss caused it.
3. BatchNorm's statistics, and other buffers that a forward pass changes, may be NaN before the loss is. So the buffers
   of the last good step are kept, and restored when a step is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smddp.distributed import Membership
from smddp.errors import TrainingDivergedError

logger = logging.getLogger(__name__)

OnNonfinite = Literal["skip", "stop", "raise"]

_TOLD = 10


class NonfiniteGuard:
    """Check the gradients of each optimizer step before they are applied. This waits for the GPU once a step.

    ``"skip"`` drops the step, ``"raise"`` raises an error, and ``"stop"`` first calls ``save``, which must make the
    state before the step durable. With a loss scaler, gradients that overflow while all losses are finite are the
    scaler's business. Making it raises ValueError for an unknown action, or before PyTorch 2.6.
    """

    def __init__(
        self,
        module: nn.Module,
        membership: Membership,
        action: OnNonfinite,
        *,
        steps: Callable[[], int],
        save: Callable[[], None],
        has_scaler: bool,
    ) -> None:
        if action not in get_args(OnNonfinite):
            raise ValueError(
                f'on_nonfinite={action!r}: give "skip", "stop", "raise", or None to look at metric lines only'
            )
        if not hasattr(nn.utils, "get_total_norm"):
            raise ValueError(f"on_nonfinite={action!r} needs PyTorch 2.6 or later, and this is {torch.__version__}")
        self._module = module
        self._membership = membership
        self._action = action
        self._steps = steps
        self._save = save
        self._has_scaler = has_scaler
        self._losses: list[Tensor] = []
        self._buffers: list[tuple[nn.Module, str, Tensor | None]] = []
        self._skipped = 0
        self.restart()

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step, and keep a copy of the current buffers."""
        self._losses.clear()
        self._keep_buffers()

    def add(self, loss: Tensor) -> None:
        """Record the loss of a micro-batch, a scalar."""
        self._losses.append(loss.detach())

    def accepts(self, norm: Tensor) -> bool:
        """Return whether to take the step with gradients of this total norm, unscaled and not clipped.

        Raise TrainingDivergedError on all ranks if the norm is not finite and the action is ``"stop"`` or ``"raise"``.
        """
        if torch.isfinite(norm):  # waits for the GPU
            self._losses.clear()
            self._keep_buffers()
            return True
        is_finite = bool(torch.isfinite(torch.stack([loss.float() for loss in self._losses])).all())
        finite = self._membership.ranks.gather(lambda: is_finite)
        self._losses.clear()
        if self._has_scaler and all(finite):
            self._keep_buffers()
            return True  # the scaler skips it, and lowers its scale
        self._restore_buffers()
        self._act(self._event(finite))
        return False

    def _act(self, event: str) -> None:
        if self._action == "raise":
            raise TrainingDivergedError(
                f"{event}. on_nonfinite='raise' ends the training here: look for NaN in that rank's data, lower the "
                "learning rate, or drop such steps by on_nonfinite='skip'"
            )
        if self._action == "stop":
            self._save()
            steps = self._steps()
            saved = f"the checkpoint of step {steps} has the state before it" if steps else "nothing was to be saved"
            raise TrainingDivergedError(f"{event}. on_nonfinite='stop' ends the training here; {saved}")
        self._skipped += 1
        if not self._membership.cluster.is_main:
            return
        if self._skipped <= _TOLD:
            only_counted = "; the next ones are only counted" if self._skipped == _TOLD else ""
            logger.warning("%s: the step is skipped%s", event, only_counted)
        elif self._skipped & (self._skipped - 1) == 0:  # 16, 32, 64
            logger.warning("%d steps were skipped so far, whose gradients were not finite", self._skipped)

    def _event(self, finite: list[bool]) -> str:
        """Describe, for people, which losses and which gradients are not finite."""
        ranks = [str(rank) for rank, is_finite in enumerate(finite) if not is_finite]
        if not ranks:
            losses = "the losses of all ranks are finite"
        elif len(finite) == 1:
            losses = "the loss is not"
        else:
            losses = f"the loss of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} is not"
        return f"the gradients of step {self._steps() + 1} are not finite: {losses}, and {self._first()}"

    def _first(self) -> str:
        """Name, for people, the first parameter whose gradient is not finite."""
        for name, weight in self._module.named_parameters():
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                return f"the first of them is that of {name}"
        return "each of them is, but not their norm"

    @torch.no_grad()
    def _keep_buffers(self) -> None:
        # By layer and name: a forward pass may assign a new tensor to a buffer, or a tensor to one that was None.
        now = [(part, name, each) for part in self._module.modules() for name, each in part._buffers.items()]  # noqa: SLF001
        kept = [each for _, _, each in self._buffers if each is not None]
        values = [each for _, _, each in now if each is not None]
        if [_slot(*each) for each in now] == [_slot(*each) for each in self._buffers]:
            if kept:
                torch._foreach_copy_(kept, values)
        else:
            self._buffers = [(part, name, None if each is None else each.clone()) for part, name, each in now]

    @torch.no_grad()
    def _restore_buffers(self) -> None:
        for part, name, kept in self._buffers:
            now = part._buffers.get(name)  # noqa: SLF001
            if now is not None and kept is not None and now.shape == kept.shape and now.dtype == kept.dtype:
                now.copy_(kept)
            elif now is not kept:
                part._buffers[name] = None if kept is None else kept.clone()  # noqa: SLF001


def _slot(part: nn.Module, name: str, buffer: Tensor | None) -> tuple[int, str, object]:
    """Return a buffer's key. Equal keys: the value fits the kept copy."""
    return id(part), name, None if buffer is None else (buffer.shape, buffer.dtype, buffer.device)
