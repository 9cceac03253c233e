"""Models whose forward pass runs in a lower precision, by autocast or with all weights in float16.

Each wraps a model as ``module``, and is called in its place. Float16 copies of float32 weights are in half_weights.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from smddp.distributed import cast

_LOW = (torch.bfloat16, torch.float16)


class PrecisionModel(nn.Module):
    """A model whose forward pass runs in a lower precision, in training and in evaluation.

    An output that is one tensor is returned as float32. Any other output is returned as it is: its type is the
    script's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        outputs = self.compute(*args, **kwargs)
        if isinstance(outputs, Tensor) and outputs.dtype in _LOW:
            return outputs.float()  # cross_entropy under autocast would make the same copy
        return outputs

    @abstractmethod
    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own output, in the types in which it was computed."""


class AutocastModel(PrecisionModel):
    """A model under autocast: its weights are float32, and each operation runs in the precision that suits it."""

    def __init__(self, module: nn.Module, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(module)
        self._autocast = autocast

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output under autocast."""
        with self._autocast():
            return self.module(*args, **kwargs)


class PureHalfModel(PrecisionModel):
    """A model in float16 throughout.

    It is converted in place; its parameters stay the same objects for the optimizer.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module.half())

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for inputs cast to float16."""
        return self.module(*cast(args, torch.float16), **cast(kwargs, torch.float16))
