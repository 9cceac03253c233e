"""Models whose forward pass runs in a lower precision, by autocast or with all of their weights in it.

They are called in a model's place and hold it as ``module``. Half weights beside float32 ones are half_weights.py's.
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
    """A model whose forward pass runs in a lower precision, in training and in evaluation alike.

    What it returns is for the script, whose types are its own: only a tensor that is all of the output is converted.
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
    """A model under autocast: its weights are float32, and each operation has the precision that suits it.

    Args:
        module: The model.
        autocast: Makes the context of one forward pass.
    """

    def __init__(self, module: nn.Module, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(module)
        self._autocast = autocast

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output under autocast."""
        with self._autocast():
            return self.module(*args, **kwargs)


class PureHalfModel(PrecisionModel):
    """A model that is float16 altogether, made so in place: weights, buffers, gradients and what is given to it.

    Args:
        module: The model; its parameters stay the same objects, so that an optimizer that has them keeps them.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module.half())

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for the inputs as float16."""
        return self.module(*cast(args, torch.float16), **cast(kwargs, torch.float16))
