"""One model's part in a step: its losses, the average of its gradients, its optimizer step, its moving average.

It knows neither where the data comes from, nor what is saved or shown.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from smddp.distributed import DDPOptions, Membership, PowerSGD, Replica, tensors_of
from smddp.training.ema import ExponentialMovingAverage
from smddp.training.model_checks import check_added_parameters
from smddp.training.optimizer_step import OptimizerStep
from smddp.training.step_loss import ItemWeights, StepLoss

logger = logging.getLogger(__name__)

_COARSE = (torch.float16, torch.bfloat16)


class ModelStep:
    """Take the optimizer steps of one model; all ranks call its methods at the same points.

    ``wrapped`` is the model in its precision. With several ranks it is replicated, and ``model`` is the replica to
    call. ``average`` is the moving average of the weights, or None without ``ema``.
    """

    def __init__(
        self,
        module: nn.Module,
        wrapped: nn.Module,
        step: OptimizerStep,
        membership: Membership,
        *,
        device: torch.device,
        ema: float | None,
        options: DDPOptions,
    ) -> None:
        self._module = module
        self.step = step
        self.loss = StepLoss(membership, module)
        self._items = ItemWeights(membership, device, step.accumulate)
        self.model = wrapped
        self._replica: Replica | None = None
        if membership.cluster.world_size > 1:
            accumulates = None if step.accumulate == 1 else lambda: step.accumulates
            self.model = self._replica = Replica(wrapped, membership, accumulates=accumulates, options=options)
        self._optimized = step.parameters()
        self._left_with: list[Tensor] | None = None
        self._logs = membership.cluster.is_main
        self._first_shapes = _shapes(module)
        # Order: after the replica, which gives all ranks rank 0's weights. The average is a copy of those.
        self.average = None if ema is None else ExponentialMovingAverage(module, ema)

    @property
    def powersgd(self) -> PowerSGD | None:
        """PowerSGD's state on this rank; None on one rank, or with another hook."""
        return None if self._replica is None else self._replica.powersgd

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self.step.restart()
        self.loss.restart()
        self._items.restart()

    def backward_and_step(self, loss: Tensor, share: float, *, items: Tensor | float | None, collect: bool) -> bool:
        """Add the gradients of one micro-batch's loss; after the last one, take the step and return True.

        ``share`` is the loss's weight by the order of the data: 0 for a rank that repeats a sample only to take part.
        ``items`` is the number of items in the loss's mean, or None. Raises ValueError if the ranks would not average
        the gradients.
        """
        replica, step = self._replica, self.step
        if replica is not None and not replica.averages and not step.accumulates:
            raise ValueError(
                "the ranks' gradients would not be averaged: compute each loss by trainer.model(...), after the "
                "trainer.step() of the loss before it"
            )
        if replica is not None and not step.accumulates:
            self._check_optimized()
        weight: Tensor | float = share
        if items is not None:
            step.correction = self._items.correction
            weight = self._items.weigh(items if share else 0)
        self.loss.add(loss, weight, collect=collect)
        is_done = step.backward_and_step(loss, weight)
        if is_done:
            self._after_step()
        return is_done

    def finish_window(self) -> None:
        """Take the optimizer step with fewer micro-batches, because the loader has ended."""
        if self._replica is not None:
            self._replica.average_gradients()
        self.step.finish_window()
        self._after_step()

    def mean_loss(self) -> float:
        """Return the mean loss of the last step over the ranks; collective."""
        return self.loss.mean(self._items.loss_factor)

    def share_new_layers(self) -> None:
        """Give all ranks rank 0's values of layers added since the last forward pass; collective."""
        if self._replica is not None:
            self._replica.follow()

    def tell_of_other_shapes(self) -> None:
        """Warn once of saved tensors whose shape has changed, such as a memory that grows."""
        first, now = self._first_shapes, _shapes(self._module) if self._first_shapes else {}
        other = {name: shape for name, shape in now.items() if first.get(name, shape) != shape}
        if not other:
            return
        self._first_shapes = {}
        if self._logs:
            logger.warning(
                "the model has changed the shape of %s. Checkpoints hold the new shape, and a resume fails if the "
                "script makes the model with the old one: keep in state= what the model collects",
                ", ".join(f"{name} from {first[name]} to {shape}" for name, shape in other.items()),
            )

    def note_weights(self) -> None:
        """Remember the norms of the current weights, between two steps."""
        self._left_with = _norms(self._module)

    @property
    def has_other_weights(self) -> bool:
        """Whether the weights differ from the last ``note_weights``, as in the evaluation of an average.

        It waits for the GPU.
        """
        if self._left_with is None:
            return False
        now = _norms(self._module)
        return [each.device for each in now] != [each.device for each in self._left_with] or not all(
            map(torch.equal, now, self._left_with)
        )

    def _check_optimized(self) -> None:
        """Check that parameters added to an optimizer are the model's: the ranks average no other gradients."""
        weights = self.step.parameters()
        if list(map(id, weights)) != list(map(id, self._optimized)):
            known = set(map(id, self._optimized))
            check_added_parameters([weight for weight in weights if id(weight) not in known], self._module)
            self._optimized = weights

    def _after_step(self) -> None:
        self._left_with = None
        if self._replica is not None:
            self._replica.averages = False
            self._replica.share_buffers()
        if self.average is not None and self.step.applied:
            self.average.update_parameters(self._module)


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    """Return the shape of each saved tensor. Lazy layers have none before their first forward pass."""
    state = module.state_dict().items()
    return {name: list(each.shape) for name, each in state if isinstance(each, Tensor) and not is_lazy(each)}


def _norms(module: nn.Module) -> list[Tensor]:
    """Return the norm of each weight, in float32 or finer. An average of the weights has different norms."""
    weights = [each.detach() for each in tensors_of(module)[0] if each.is_floating_point() or each.is_complex()]
    coarse = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in weights if each.dtype in _COARSE]
    fine = [each for each in weights if each.dtype not in _COARSE]
    return [*coarse, *(torch._foreach_norm(fine) if fine else ())]  # noqa: SLF001
