"""Handle an optimizer step whose gradients are not finite: NaN or inf in a loss, or in a backward pass.

1. The gradients are averaged over the ranks, so their norm, and the decision by it, is the same on all ranks.
2. Only if the norm is not finite do the ranks tell each other whose loss caused it.
3. BatchNorm's statistics, and other buffers that a forward pass changes, may be NaN before the loss is. So the buffers
   of the last good step are kept, and restored when a step is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smddp.display_text import counted, shown_names
from smddp.distributed import Membership
from smddp.dtensor import local_values
from smddp.errors import TrainingDivergedError

logger = logging.getLogger(__name__)

OnNonfinite = Literal["skip", "stop", "raise", "rewind"]

_TOLD = 10
_SHOWN_SAMPLES = 32
_SHOWN_RANKS = 3
_EACH_IS = "each of them is, but not their norm"


class NonfiniteGuard:
    """Check the gradients of each optimizer step before they are applied. This waits for the GPU once a step.

    ``"skip"`` drops the step, ``"raise"`` raises an error, and ``"stop"`` first calls ``save``, which must make the
    state before the step durable. ``"rewind"`` drops the step and leaves its ``event`` for the loop, which goes back
    to a checkpoint, at most ``rewinds`` times. Before any of them, ``compare`` raises if the ranks have different
    weights. ``samples`` returns the indices of the samples in a micro-batch, if known. With a loss scaler, gradients
    that overflow while all losses are finite are the scaler's business. Making it raises ValueError for an unknown
    action, or before PyTorch 2.6.
    """

    def __init__(
        self,
        module: nn.Module,
        membership: Membership,
        action: OnNonfinite,
        *,
        steps: Callable[[], int],
        save: Callable[[], None],
        compare: Callable[[], None],
        samples: Callable[[int], Sequence[int]],
        has_scaler: bool,
        rewinds: int,
    ) -> None:
        if action not in get_args(OnNonfinite):
            raise ValueError(
                f'on_nonfinite={action!r}: give "skip", "stop", "raise", "rewind", or None to look at metric lines only'
            )
        if not hasattr(nn.utils, "get_total_norm"):
            raise ValueError(f"on_nonfinite={action!r} needs PyTorch 2.6 or later, and this is {torch.__version__}")
        self._module = module
        self._membership = membership
        self._action = action
        self._steps = steps
        self._save = save
        self._compare = compare
        self._samples = samples
        self._has_scaler = has_scaler
        self._losses: list[Tensor] = []
        self._buffers: list[tuple[nn.Module, str, Tensor | None]] = []
        self._skipped = 0
        self._most_rewinds, self._rewinds = rewinds, 0
        self.event: str | None = None
        """The reason to go back to a checkpoint; None if there is none. The loop resets it."""
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

        If it is not finite, raise ReplicasDifferError on all ranks if their weights differ, else TrainingDivergedError
        if the action is ``"stop"`` or ``"raise"``.
        """
        if torch.isfinite(norm):  # waits for the GPU
            self._losses.clear()
            self._keep_buffers()
            return True
        finite = torch.isfinite(torch.stack([loss.float() for loss in self._losses])).tolist()
        own: str | None = None
        if not all(finite) and not self._membership.repeats:  # else the first rank with these samples names them
            own = self._name_samples([number for number, each in enumerate(finite) if not each])
        causes = self._membership.ranks.gather(lambda: own)
        self._losses.clear()
        if self._has_scaler and not any(cause is not None for cause in causes):
            self._keep_buffers()
            return True  # the scaler skips it, and lowers its scale
        self._compare()  # a flipped bit of a weight may be the cause: its replica differs until the step is taken
        self._restore_buffers()
        self._act(self._event(causes))
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
        if self._action == "rewind":
            if self._rewinds == self._most_rewinds:
                raise TrainingDivergedError(
                    f"{event}. on_nonfinite='rewind' has gone back {counted(self._rewinds, 'time')}, as often as "
                    "rewinds= allows: lower the learning rate, or look for NaN in those samples"
                )
            self._rewinds += 1
            self.event = event
            return
        self._skipped += 1
        if not self._membership.cluster.is_main:
            return
        if self._skipped <= _TOLD:
            only_counted = "; the next ones are only counted" if self._skipped == _TOLD else ""
            logger.warning("%s: the step is skipped%s", event, only_counted)
        elif self._skipped & (self._skipped - 1) == 0:  # 16, 32, 64
            logger.warning("%d steps were skipped so far, whose gradients were not finite", self._skipped)

    def _name_samples(self, micro_batches: list[int]) -> str:
        """Name, for people, the samples in these micro-batches; empty if they are not known."""
        samples = [sample for micro_batch in micro_batches for sample in self._samples(micro_batch)]
        return f"samples {shown_names(samples, most=_SHOWN_SAMPLES)}" if samples else ""

    def _event(self, causes: list[str | None]) -> str:
        """Describe, for people, which losses and which gradients are not finite.

        ``causes`` has the samples of each rank whose loss is not finite, and None for the other ranks.
        """
        named = {rank: samples for rank, samples in enumerate(causes) if samples is not None}
        known = [f"rank {rank}: {samples}" if len(named) > 1 else samples for rank, samples in named.items() if samples]
        where = f" ({'; '.join(known[:_SHOWN_RANKS])})" if known else ""
        if not named:
            losses = "the losses of all ranks are finite"
        elif len(causes) == 1:
            losses = f"the loss is not{where}"
        else:
            losses = (
                f"the loss of rank{'s' if len(named) > 1 else ''} {shown_names(named, most=_SHOWN_RANKS)} is not{where}"
            )
        return f"the gradients of step {self._steps() + 1} are not finite: {losses}, and {self._first()}"

    def _first(self) -> str:
        """Name, for people, the first parameter whose gradient is not finite, on any rank; collective."""
        names = [name for name, _ in self._module.named_parameters()]
        gradients = (weight.grad for weight in self._module.parameters())
        own = (
            number
            for number, each in enumerate(gradients)
            if each is not None and not torch.isfinite(local_values(each)).all()
        )
        first = next(own, len(names))
        first = min(self._membership.ranks.gather(lambda: first))
        return f"the first of them is that of {names[first]}" if first < len(names) else _EACH_IS

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
