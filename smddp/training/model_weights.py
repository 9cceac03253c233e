"""A trained model's weights between two steps: finite, and with the values and shapes that a checkpoint should have."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from smddp.display_text import shown_names
from smddp.distributed import Membership, sum_over_ranks, tensors_of
from smddp.dtensor import is_dtensor, local_values
from smddp.errors import TrainingDivergedError

logger = logging.getLogger(__name__)

_SHOWN = 3
_COARSE = (torch.float16, torch.bfloat16)


class ModelWeights:
    """The weights of one model on each rank; all ranks call its methods at the same points.

    Divide a sharded model before ``note`` and ``are_exchanged``: a forward pass may have left it gathered.
    """

    def __init__(self, module: nn.Module, membership: Membership) -> None:
        self._module = module
        self._membership = membership
        self._first_shapes = _shapes(module)
        self._noted: list[Tensor] | None = None

    def check_finite(self, step: int) -> None:
        """Raise TrainingDivergedError if some weights are not finite.

        They are the same on all ranks; or each rank has a piece of them, and this is collective.
        """
        names, largest = [], []
        is_divided = False
        for name, weight in self._module.named_parameters():
            if weight.numel() and (weight.is_floating_point() or weight.is_complex()):
                is_divided = is_divided or is_dtensor(weight)
                values = local_values(weight.detach())
                names.append(name)
                # A piece may be empty, and has no largest value.
                norm = torch.linalg.vector_norm(values, float("inf")) if values.numel() else values.new_zeros(())
                largest.append(norm.float())
        # Stacked on the first weight's device: the CPU waits for the GPU once, not once a weight.
        together = [norm.to(largest[0].device) for norm in largest]
        is_broken = ~torch.isfinite(torch.stack(together)) if together else torch.zeros(0, dtype=torch.bool)
        if is_divided:
            is_broken = sum_over_ranks(is_broken.int(), self._membership) > 0
        broken = [name for name, is_so in zip(names, is_broken.tolist(), strict=True) if is_so]
        if broken:
            raise TrainingDivergedError(
                f"at step {step} the model's {shown_names(broken, most=_SHOWN)} "
                f"{'has' if len(broken) == 1 else 'have'} values that are not finite: no further step can mend that. "
                "Nothing of it was saved; the existing checkpoints are of earlier steps. Lower the learning rate, set "
                "clip_norm, or look for NaN in the data"
            )

    def warn_of_other_shapes(self) -> None:
        """Warn once of saved tensors whose shape has changed, such as a memory that grows."""
        first, now = self._first_shapes, _shapes(self._module) if self._first_shapes else {}
        other = {name: shape for name, shape in now.items() if first.get(name, shape) != shape}
        if not other:
            return
        self._first_shapes = {}
        if self._membership.cluster.is_main:
            logger.warning(
                "the model has changed the shape of %s. Checkpoints hold the new shape, and a resume fails if the "
                "script makes the model with the old one: keep in state= what the model collects",
                ", ".join(f"{name} from {first[name]} to {shape}" for name, shape in other.items()),
            )

    def note(self) -> None:
        """Remember the norms of the current weights."""
        self._noted = self._norms()

    def forget(self) -> None:
        """Forget the noted weights, because a step changes them."""
        self._noted = None

    @property
    def are_noted(self) -> bool:
        """Whether weights are noted."""
        return self._noted is not None

    def are_exchanged(self) -> bool:
        """Return whether the weights differ from the noted ones, as in the evaluation of an average.

        It waits for the GPU.
        """
        assert self._noted is not None
        now = self._norms()
        return [each.device for each in now] != [each.device for each in self._noted] or not all(
            map(torch.equal, now, self._noted)
        )

    def _norms(self) -> list[Tensor]:
        """Return the norm of each weight, or of this rank's piece. An average of the weights has different norms."""
        values = [local_values(each.detach()) for each in tensors_of(self._module)[0]]
        weights = [each for each in values if each.is_floating_point() or each.is_complex()]
        coarse = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in weights if each.dtype in _COARSE]
        fine = [each for each in weights if each.dtype not in _COARSE]
        return [*coarse, *(torch._foreach_norm(fine) if fine else ())]  # noqa: SLF001


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    """Return the shape of each saved tensor. Lazy layers have none before their first forward pass."""
    state = module.state_dict().items()
    return {name: list(each.shape) for name, each in state if isinstance(each, Tensor) and not is_lazy(each)}
