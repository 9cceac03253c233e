"""The losses of one optimizer step over all ranks, weighed and averaged; the checks for finite losses and spikes."""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from smddp.display_text import describe
from smddp.distributed import Membership, sum_over_ranks
from smddp.training.model_weights import ModelWeights
from smddp.training.progress import Progress

logger = logging.getLogger(__name__)

_FREED_GRAPH = "backward through the graph a second time"
"""What torch says of a graph whose saved tensors are freed; it has no type of its own for this error."""
_READY_TWICE = re.compile(
    r"Expected to mark a variable ready only once.*?(?: with name (\S+) has been marked|$)", re.DOTALL
)
"""What DDP says of a weight whose gradient it has averaged already."""

_SAME, _NOTHING = 0.01, 1e-9
"""Far above the rounding of ranks that compute the same, and below what other samples or other dropout make."""

_REMEMBERED, _LEAST = 32, 16
"""Losses that a loss is compared with: at most, and at least."""
_FAR = 15.0
"""A spike is so many median distances above the median; in a normal distribution, ten standard deviations."""


class StepLoss:
    """Collect the losses of the micro-batches of a step, on request. All ranks call ``mean`` at the same steps."""

    def __init__(self, membership: Membership, weights: ModelWeights) -> None:
        self._membership = membership
        self._weights = weights
        self._collected: list[Tensor] = []
        self._warned = False

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self._collected.clear()

    def add(self, loss: Tensor, weight: Tensor | float, *, collect: bool) -> None:
        """Add the loss of a micro-batch, a scalar, with its weight in `OptimizerStep.backward_and_step`.

        ``collect`` says that ``mean`` will be called after this step.
        """
        if collect:
            self._collected.append(loss.detach() * weight)

    def mean(self, factor: Tensor | None = None) -> float:
        """Return the mean over the step's samples on all ranks; collective.

        ``factor`` multiplies the sum of this rank's weighted losses, so that the mean over the ranks is the mean over
        all items. It is None if the weights have a mean of 1.
        """
        losses = torch.stack([loss.double() for loss in self._collected])
        self._collected.clear()
        return self._over_ranks(losses.mean() if factor is None else losses.sum() * factor)

    def check_finite(self, step: int, loss: float) -> None:
        """Raise TrainingDivergedError if a weight is not finite; check only if the mean ``loss`` is not finite."""
        if math.isfinite(loss):
            return
        self._weights.check_finite(step)
        if not self._warned and self._membership.cluster.is_main:
            self._warned = True
            logger.warning("the loss of step %d is %s; the weights are finite, and training continues", step, loss)

    def check_same(self, loss: Tensor) -> None:
        """Raise ValueError if ranks that compute on the same data have different losses; collective."""
        if self._membership.data_parallel is None:
            return
        own = loss.item()
        of_ranks = self._membership.ranks.gather(lambda: (self._membership.data_rank.first_rank, own))
        for rank, (first, found) in enumerate(of_ranks):
            expected = of_ranks[first][1]
            both_broken = not math.isfinite(found) and not math.isfinite(expected)
            if not both_broken and not math.isclose(found, expected, rel_tol=_SAME, abs_tol=_NOTHING):
                raise ValueError(
                    f"by tensor parallelism, ranks {first} and {rank} compute together on the same batches, and their "
                    f"losses are {expected:.6g} and {found:.6g}: give both the same batches, as trainer.loader() does, "
                    "and the same random numbers: call trainer.resume() before the first batch, and seed both alike "
                    "after it"
                )

    def _over_ranks(self, value: Tensor) -> float:
        self.check_same(value)
        return sum_over_ranks(value, self._membership).item() / self._membership.cluster.world_size


class LossSpikes:
    """Warn of a loss far above the last ones: by their median, which one spike does not move."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)
        self._quiet = 0

    def note(self, step: int, loss: float) -> None:
        """Compare the loss of a step with those noted before; warn once in ``_REMEMBERED`` losses at most."""
        if not math.isfinite(loss):
            return
        self._quiet = max(self._quiet - 1, 0)
        if len(self._last) >= _LEAST and not self._quiet:
            middle = median(self._last)
            distance = median(abs(each - middle) for each in self._last)
            if loss - middle > max(_FAR * distance, abs(middle), max(self._last) - middle):
                self._quiet = _REMEMBERED
                logger.warning(
                    "the loss of step %d is %.4g, and the median of the %d metric lines before is %.4g. If it stays "
                    "high, lower the learning rate, set clip_norm, or look at the data of the last steps",
                    step,
                    loss,
                    len(self._last),
                    middle,
                )
        self._last.append(loss)


# Weigh micro-batches by their number of items, such as tokens: the gradient is the mean over all items of a step.
#
# 1. The number of items of a step, on all ranks, is known only after its last micro-batch.
# 2. So each loss is multiplied by its own number of items over a fixed unit.
# 3. After the last micro-batch the gradients are multiplied by the missing factor, once, before clipping.
# 4. The unit is a power of two: it changes no bit of a result, and keeps fp16's scaled losses within their range.
class ItemWeights:
    """The item weights of successive optimizer steps; all ranks call its methods at the same points."""

    def __init__(self, membership: Membership, device: torch.device, accumulate: int, progress: Progress) -> None:
        self._membership = membership
        self._progress = progress  # with the unit, which a resume keeps
        self._device = device
        self._accumulate = accumulate
        self._total: Tensor | None = None
        self._weighed = 0
        self.loss_factor: Tensor | None = None
        """Factor for the sum of the last step's weighted losses; None if the step had no weights."""

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self._total, self._weighed = None, 0

    def weigh(self, items: Tensor | float) -> Tensor:
        """Return the factor for the mean loss of a micro-batch with this number of items.

        Only the first call waits for a GPU. Raise ValueError for a negative or infinite number, or a tensor of several.
        """
        if isinstance(items, Tensor):
            if items.numel() != 1:
                raise ValueError(f"weight has shape {list(items.shape)}: give one number, the items of the micro-batch")
        elif not 0 <= items < math.inf:
            raise ValueError(f"weight={items}: give how many items the loss is the mean of, 0 or more")
        count = torch.as_tensor(items, dtype=torch.float64, device=self._device).detach().reshape(())
        if not self._progress.item_unit:
            largest = sum_over_ranks(count, self._membership).item()
            self._progress.item_unit = 2.0 ** math.ceil(math.log2(max(largest, 1.0)))
        weight = count / self._progress.item_unit
        self._total = weight if self._total is None else self._total + weight
        self._weighed += 1
        return weight.float()

    def correction(self, micro_batches: int) -> Tensor | None:
        """Return the factor for the gradients of a step with this number of micro-batches; None if all lack a weight.

        Raise ValueError if only some of them have one.
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
        # The minimum avoids a division by zero: without items on any rank, all gradients are zero anyway.
        everywhere = sum_over_ranks(total, self._membership).clamp(min=0.5 / self._progress.item_unit)
        self.loss_factor = ranks / everywhere
        return (self._accumulate * self.loss_factor).float()


def refused_loss(loss: object, weights: Sequence[Tensor]) -> TypeError | ValueError:
    """Return the error for a loss that is no scalar tensor with a gradient; ``weights`` are to be trained."""
    if not isinstance(loss, Tensor):
        give = "its .loss" if hasattr(loss, "loss") else "the loss as a tensor, without .item()"
        return TypeError(f"trainer.step() got {describe(loss)}: give {give}")
    if loss.requires_grad:
        return ValueError(f"trainer.step() got a loss of shape {list(loss.shape)}: give a scalar, such as loss.mean()")
    trainable = sum(weight.requires_grad for weight in weights)
    if not trainable:
        return ValueError(
            f"trainer.step() got a loss without a gradient: none of the {len(weights)} parameters of the optimizer "
            "is trainable. Call requires_grad_(True) on those that are to be trained"
        )
    return ValueError(
        f"trainer.step() got a loss without a gradient: it reaches none of the {trainable} trainable parameters. "
        "Compute it from the outputs of trainer.model(...), outside of torch.no_grad() and without .detach(); "
        "adapters that are merged into frozen weights take part again after peft's unmerge_adapter()"
    )


def refused_backward(error: RuntimeError) -> ValueError | None:
    """Return the error for a loss that torch can't compute the gradients of in one pass; None for another error.

    An earlier backward pass has freed its graph, or DDP would average the gradient of a weight twice.
    """
    if twice := _READY_TWICE.search(str(error)):
        return ValueError(
            f"the gradient of {twice[1] or 'a weight'} came twice in one backward pass, and DDP averages it once: give "
            "torch.utils.checkpoint use_reentrant=False; with find_unused_parameters, use weights in the model's "
            "forward pass alone, not in the loss; or give parallel=smddp.DDPOptions(static_graph=True) if each step "
            "uses the same weights"
        )
    if _FREED_GRAPH not in str(error):
        return None
    return ValueError(
        "trainer.step() got a loss whose backward pass was made before, at least in part: trainer.step() calls "
        "loss.backward() itself. Remove loss.backward() from the loop, give each loss to trainer.step() once, and call "
        ".detach() on what a batch keeps for the next one, such as the state of an RNN"
    )
