"""The exponential moving average of a model's weights, which often evaluates better than the weights.

PyTorch's AveragedModel sends its count to the GPU at each update, and waits for it. This class computes the same
average without a wait.
"""

from __future__ import annotations

import copy
import logging
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from smddp.distributed import has_shards, tensors_of
from smddp.dtensor import local_values

logger = logging.getLogger(__name__)

_COARSE = (torch.half, torch.bfloat16)


class ExponentialMovingAverage(AveragedModel):
    """An AveragedModel with ``average = decay × average + (1 - decay) × weights``, in evaluation mode.

    It is a copy of the model, on its devices. The first update copies the weights. Floating-point and complex buffers
    are averaged, too, so that BatchNorm's running statistics fit the averaged weights; other buffers, such as
    ``num_batches_tracked``, are copied. A layer that is added or replaced later begins as a copy. Making it raises
    ValueError for a decay outside of 0 to 1, and for trained float16 or bfloat16 weights, which are too coarse.

    A module whose weights are divided among the ranks can't be copied: ``outline`` is a copy of it without values, to
    be divided in the same way. It follows changes of buffers, and refuses other layers.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> average = ExponentialMovingAverage(model, 0.9)
        >>> average.update_parameters(model)  # after each optimizer step
        >>> average(torch.ones(1, 2)).equal(model(torch.ones(1, 2)))
        True
    """

    def __init__(self, module: nn.Module, decay: float, outline: nn.Module | None = None) -> None:
        if not isinstance(decay, int | float) or not 0 < decay < 1:
            raise ValueError(f"ema={decay!r}: give the decay, a number between 0 and 1, such as 0.999")
        _check_weights(module, decay)
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        super().__init__(module if outline is None else outline, multi_avg_fn=self._average)
        self._decay = decay
        self.n_averaged: Tensor = self.n_averaged.cpu()  # read at each update
        self.requires_grad_(False).eval()
        self._know(module)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Update the average with the model's current weights and buffers."""
        is_first = int(self.n_averaged) == 0
        self.n_averaged += 1
        if self._layout_of(model) != self._layout:
            self._follow(model)
        kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for average, value in zip(chain(*tensors_of(self.module)), chain(*tensors_of(model)), strict=True):
            own, new = local_values(average.detach()), local_values(value.detach())
            if is_first or not (own.dtype.is_floating_point or own.dtype.is_complex):
                own.copy_(new)
            else:
                averages, values = kinds.setdefault((own.device, own.dtype), ([], []))
                averages.append(own)
                values.append(new)
        for averages, values in kinds.values():
            self._average(averages, values, 0)

    def _know(self, model: nn.Module) -> None:
        """Remember the layout of the averaged model."""
        self._layout = self._layout_of(model)
        self._known, _ = tensors_of(model)

    @staticmethod
    def _layout_of(model: nn.Module) -> tuple[list[Any], ...]:
        """Return a value that changes with the model's layers.

        Buffers count by name: each step may assign a new tensor.
        """
        parts, parameters = [id(part) for part in model.modules()], tensors_of(model)[0]
        # A coarse weight is averaged only as long as it is frozen: so a change of that counts, too.
        weights = [(id(each), each.dtype, each.dtype in _COARSE and each.requires_grad) for each in parameters]
        return parts, weights, [(name, buffer.shape, buffer.dtype) for name, buffer in model.named_buffers()]

    def _follow(self, model: nn.Module) -> None:
        """Become a copy of the changed model, and keep the averages of its unchanged weights."""
        _check_weights(model, self._decay)
        if has_shards(model):
            self._follow_buffers(model)
            return
        averages = dict(chain(self.module.named_parameters(), self.module.named_buffers()))
        known = {id(weight) for weight in self._known}
        kept = {name for name, weight in model.named_parameters() if id(weight) in known}
        kept |= {name for name, _ in model.named_buffers()}
        # A buffer assigned by a forward pass may have a graph, which deepcopy refuses.
        buffers = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
        fresh = copy.deepcopy(model, buffers).requires_grad_(False).eval()
        for name, value in chain(fresh.named_parameters(), fresh.named_buffers()):
            average = averages.get(name)
            if name in kept and average is not None and average.shape == value.shape:
                value.copy_(average)
        self.module.__dict__.update(fresh.__dict__)  # in place: `Trainer.ema` is this very module
        self._know(model)
        logger.info("the average of the weights follows the model, whose layers or buffers are others now")

    def _follow_buffers(self, model: nn.Module) -> None:
        if self._layout_of(model)[:2] != self._layout[:2]:
            raise ValueError(
                "ema= can't follow a sharded model to other layers: change them before the Trainer is made"
            )
        for part, of_model in zip(self.module.modules(), model.modules(), strict=True):
            for name, buffer in of_model.named_buffers(recurse=False):
                if (average := getattr(part, name, None)) is None or average.shape != buffer.shape:
                    is_saved = name not in of_model._non_persistent_buffers_set  # noqa: SLF001, torch shows it nowhere
                    part.register_buffer(name, buffer.detach().clone(), persistent=is_saved)
        self._know(model)


def _check_weights(model: nn.Module, decay: float) -> None:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    coarse = {str(weight.dtype) for weight in trained if weight.dtype in _COARSE}
    if coarse:
        raise ValueError(
            f"ema={decay} of trained weights in {', '.join(sorted(coarse))}: an update would round to "
            "nothing; keep the weights in float32, as precision 'bf16', 'fp16' and 'O2' do"
        )
