"""What becomes of an optimizer step whose gradients are not finite: NaN or inf in a loss, or in a backward pass.

The gradients are the ranks' average, and the same on all of them: so is what is decided by their norm. Only where they
are not finite do the ranks ask each other whose loss it was.

BatchNorm's statistics, and whatever other buffers a forward pass changes, may have become NaN before the loss did. So
those of the last good step are kept, and put back where a step is dropped.
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
    """Looks at the gradients of each optimizer step before they are applied; that waits for the GPU once a step.

    Args:
        module: The model.
        membership: The ranks; all call its methods at the same steps.
        action: ``"skip"`` drops the gradients and goes on, ``"raise"`` ends the training, ``"stop"`` saves the state
            that was before the step, and ends it then.
        steps: Tells how many optimizer steps were taken.
        save: Makes a checkpoint of the state before the step durable.
        has_scaler: Whether there is a loss scaler: gradients that overflow while all losses are finite are its business
            then, and no event.

    Raises:
        ValueError: The action is unknown, or PyTorch is older than 2.6.
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
        """Forget micro-batches of a step that was never finished, and keep the buffers that are now."""
        self._losses.clear()
        self._keep_buffers()

    def add(self, loss: Tensor) -> None:
        """Take the loss of a micro-batch, a scalar."""
        self._losses.append(loss.detach())

    def accepts(self, norm: Tensor) -> bool:
        """Return whether the step is to be taken.

        Args:
            norm: That of all gradients of the step together, unscaled and not clipped.

        Raises:
            TrainingDivergedError: It is not finite, and the action is to stop or to raise; on all ranks.
        """
        if torch.isfinite(norm):  # the wait
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
        """Return what was found, for people."""
        ranks = [str(rank) for rank, is_finite in enumerate(finite) if not is_finite]
        if not ranks:
            losses = "the losses of all ranks are finite"
        elif len(finite) == 1:
            losses = "the loss is not"
        else:
            losses = f"the loss of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} is not"
        return f"the gradients of step {self._steps() + 1} are not finite: {losses}, and {self._first()}"

    def _first(self) -> str:
        """Return which parameter's gradient it is, for people."""
        for name, weight in self._module.named_parameters():
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                return f"the first of them is that of {name}"
        return "each of them is, but not their norm"

    @torch.no_grad()
    def _keep_buffers(self) -> None:
        # By layer and name: a forward pass may assign one, and one that is None may become a tensor.
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
    """Return what tells whether a buffer's value can be copied into a kept one."""
    return id(part), name, None if buffer is None else (buffer.shape, buffer.dtype, buffer.device)
