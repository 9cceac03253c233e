"""Models whose forward pass runs in a lower precision. Each wraps a model as ``module``, and is called in its place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from smddp.distributed import cast

_LOW = (torch.bfloat16, torch.float16)
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.GroupNorm, nn.LayerNorm, nn.RMSNorm),
)


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
            return outputs.float()  # cross_entropy computes in float32 then; under autocast it is less exact on a GPU
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


class HalfWeightsModel(PrecisionModel):
    """A model that computes with float16 copies of its float32 parameters: Apex's O2.

    The optimizer steps the float32 parameters, DDP averages their gradients, and checkpoints contain them. Each forward
    pass makes fresh copies, through which the gradients reach the parameters. Norm layers keep their float32
    parameters, and compute in float32.

    Activation checkpointing recomputes a layer in the backward pass, when the copies are gone: use autocast with it.
    The model's norm layers get hooks, which act only within this forward pass. Making it raises ValueError for a model
    under ``torch.compile``, which would not see the copies.

    Examples:
        >>> model = HalfWeightsModel(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> {weight.dtype for weight in model.parameters()} | {weight.grad.dtype for weight in model.parameters()}
        {torch.float32}
    """

    def __init__(self, module: nn.Module) -> None:
        if hasattr(module, "_orig_mod"):
            raise ValueError(
                "precision='O2' computes with copies of the weights, which torch.compile does not see: give the model "
                "that is not compiled, or use precision='O1'"
            )
        super().__init__(module)
        self._computes = False
        self._norms: list[nn.Module] = []  # those with hooks
        self._follow_norms()

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output for inputs cast to float16."""
        norms = self._follow_norms()
        weights, buffers = self._masters(norms)
        # Tied weights have one name here, and functional_call puts the copy in all their places.
        copies = {name: value.half() for name, value in {**weights, **buffers}.items()}
        self._computes = True
        try:
            outputs = functional_call(self.module, copies, cast(args, torch.float16), cast(kwargs, torch.float16))
        finally:
            self._computes = False
        with torch.no_grad():
            for name, buffer in buffers.items():  # keep what the forward pass changed, without the rounding
                after = copies[name]  # functional_call stores here what the forward pass assigned
                if after.shape == buffer.shape:
                    buffer.copy_(torch.where(after == buffer.half(), buffer, after.float()))
                else:
                    layer, _, own_name = name.rpartition(".")
                    setattr(self.module.get_submodule(layer), own_name, after.detach().float())
        return outputs

    def _follow_norms(self) -> list[nn.Module]:
        """Return the model's current norm layers; add hooks to new ones."""
        norms: list[nn.Module] = [part for part in self.module.modules() if isinstance(part, _NORMS)]
        if [id(norm) for norm in norms] != [id(norm) for norm in self._norms]:
            for norm in norms:
                if not any(norm is known for known in self._norms):
                    norm.register_forward_pre_hook(self._before_norm, with_kwargs=True)
                    norm.register_forward_hook(self._after_norm)
            self._norms = norms
        return norms

    def _masters(self, norms: list[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the float32 parameters and buffers outside of norm layers, by name."""
        own = {id(value) for part in norms for value in [*part.parameters(recurse=False), *part.buffers(recurse=False)]}
        named = (self.module.named_parameters(), self.module.named_buffers())
        weights, buffers = (
            {name: value for name, value in each if value.dtype == torch.float32 and id(value) not in own}
            for each in named
        )
        return weights, buffers

    def _before_norm(self, _norm: nn.Module, args: Any, kwargs: Any) -> Any:
        return (cast(args, torch.float32), cast(kwargs, torch.float32)) if self._computes else None

    def _after_norm(self, _norm: nn.Module, _args: Any, outputs: Any) -> Any:
        return cast(outputs, torch.float16) if self._computes else None
