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

from smddp.distributed import tensors_of

logger = logging.getLogger(__name__)


class ExponentialMovingAverage(AveragedModel):
    """An AveragedModel with ``average = decay × average + (1 - decay) × weights``, in evaluation mode.

    It is a copy of the model, on its devices. The first update copies the weights. Floating-point buffers are averaged,
    too, so that BatchNorm's running statistics fit the averaged weights; other buffers, such as
    ``num_batches_tracked``, are copied. A layer that is added or replaced later begins as a copy. Making it raises
    ValueError for a decay outside of 0 to 1, and for float16 or bfloat16 weights, which are too coarse.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> average = ExponentialMovingAverage(model, 0.9)
        >>> average.update_parameters(model)  # after each optimizer step
        >>> average(torch.ones(1, 2)).equal(model(torch.ones(1, 2)))
        True
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not isinstance(decay, int | float) or not 0 < decay < 1:
            raise ValueError(f"ema={decay!r}: give the decay, a number between 0 and 1, such as 0.999")
        _check_weights(module, decay)
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        super().__init__(module, multi_avg_fn=self._average)
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
            if is_first or not average.dtype.is_floating_point:
                average.copy_(value)
            else:
                averages, values = kinds.setdefault((average.device, average.dtype), ([], []))
                averages.append(average)
                values.append(value.detach())
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
        weights = [(id(weight), weight.dtype) for weight in parameters]
        return parts, weights, [(name, buffer.shape, buffer.dtype) for name, buffer in model.named_buffers()]

    def _follow(self, model: nn.Module) -> None:
        """Become a copy of the changed model, and keep the averages of its unchanged weights."""
        _check_weights(model, self._decay)
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


def _check_weights(model: nn.Module, decay: float) -> None:
    coarse = {str(weight.dtype) for weight in model.parameters() if weight.dtype in (torch.half, torch.bfloat16)}
    if coarse:
        raise ValueError(
            f"ema={decay} of weights in {', '.join(sorted(coarse))}: an update would round to "
            "nothing; keep the weights in float32, as precision 'bf16', 'fp16' and 'O2' do"
        )
