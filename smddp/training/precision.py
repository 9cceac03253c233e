"""The number format that a model computes in, chosen by name, and the models that compute in it.

`Precision` decides what a name means on a device: automatic mixed precision, TF32, or a level of Apex's. It refuses
what the device can't do. The models below it run a forward pass in a lower precision: each wraps a model as ``module``,
and is called in its place.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.func import functional_call

from smddp.distributed import Replica, ShardedModel, cast

logger = logging.getLogger(__name__)

PrecisionName = Literal["auto", "fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"]

_CPU = torch.device("cpu")
_AMPERE = (8, 0)  # has TF32, and bf16 in hardware; older GPUs only emulate bf16, and slowly
_MEANING = {"O0": "fp32", "O1": "fp16"}
_DTYPES = {
    **dict.fromkeys(["fp32", "tf32"], torch.float32),
    "bf16": torch.bfloat16,
    **dict.fromkeys(["fp16", "O2", "O3"], torch.float16),
}

_LOW = (torch.bfloat16, torch.float16)
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.GroupNorm, nn.LayerNorm, nn.RMSNorm),
)


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision on a device.

    ========== ============================== ====================== ======
    name       forward pass                   weights, gradients     scaler
    ========== ============================== ====================== ======
    ``fp32``   float32                        float32                no
    ``tf32``   float32, its products in TF32  float32                no
    ``bf16``   autocast to bfloat16           float32                no
    ``fp16``   autocast to float16            float32                yes
    ``auto``   bf16 or fp16 by the GPU; on a CPU fp32
    ``O0``     is fp32
    ``O1``     is fp16
    ``O2``     float16 copies of the weights  float32                yes
    ``O3``     float16                        float16                no
    ========== ============================== ====================== ======

    O0 to O3 are Apex's names, in today's terms. In O2 norm layers compute in float32. In O3 everything is float16, the
    optimizer's state included: a baseline for speed, which seldom learns (Adam's eps of 1e-8 is 0 in float16). TF32 is
    switched on for the whole process, and a log line says so.

    Examples:
        >>> precision = Precision("bf16", torch.device("cpu"))
        >>> model = precision.wrap(torch.nn.Linear(2, 1))
        >>> model(torch.ones(1, 2)).dtype
        torch.float32

    Raises:
        ValueError: The name is unknown, or the device can't compute in that precision.
    """

    requested: PrecisionName = "auto"
    """The requested precision. ``"auto"`` is fp32 on a CPU, bf16 on a GPU with bf16 in hardware, else fp16. ``"bf16"``
    is refused on a GPU that only emulates it, which is slower than fp32."""

    device: torch.device = _CPU
    """The device that the model computes on."""

    name: str = field(init=False)
    """The resolved precision: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"O2"`` or ``"O3"``."""

    def __post_init__(self) -> None:
        if self.requested not in get_args(PrecisionName):
            allowed = ", ".join(repr(name) for name in get_args(PrecisionName))
            raise ValueError(f"precision={self.requested!r} is unknown; use one of {allowed}")
        name = _best(self.device) if self.requested == "auto" else _MEANING.get(self.requested, self.requested)
        if name == "bf16" and self.device.type == "cuda" and not _is_from_ampere_on(self.device):
            raise ValueError(
                f"precision='bf16' needs a GPU that has it in hardware, and {torch.cuda.get_device_name(self.device)} "
                "has not; use 'fp16' or 'auto'"
            )
        if name == "tf32" and not (self.device.type == "cuda" and _is_from_ampere_on(self.device)):
            here = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"a {self.device.type}"
            raise ValueError(
                f"precision='tf32' needs a GPU of CUDA capability 8.0 or later, which {here} is not; use 'fp32' or "
                "'auto'"
            )
        object.__setattr__(self, "name", name)

    @property
    def dtype(self) -> torch.dtype:
        """The type of matrix products and convolutions."""
        return _DTYPES[self.name]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of bf16 or fp16; for other precisions a context that does nothing."""
        if self.name not in ("bf16", "fp16"):
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def scaler(self) -> GradScaler | None:
        """Return the loss scaler that fp16's narrow range needs; None for O3, and for a range like float32's."""
        return GradScaler(self.device.type) if self.name in ("fp16", "O2") else None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with its forward pass in this precision; for fp32 and tf32 the model itself.

        O3 converts the model's weights to float16 in place; tf32 is switched on for the whole process.

        An output that is one tensor is returned as float32, for a loss outside of autocast. Any other output (a tuple,
        a dict, an object) is returned as it is, with its tensors in the precision that they were computed in: call
        ``.float()`` on those that a loss uses. In fp32 that costs nothing.

        Examples:
            >>> class Classifier(torch.nn.Linear):
            ...     def forward(self, x):
            ...         return {"logits": super().forward(x)}
            >>> model = Precision("bf16").wrap(Classifier(2, 3))
            >>> outputs = model(torch.ones(1, 2))
            >>> outputs["logits"].dtype
            torch.bfloat16
            >>> loss = torch.nn.functional.cross_entropy(outputs["logits"].float(), torch.tensor([1]))
            >>> loss.dtype
            torch.float32
        """
        if self.name == "O2":
            return HalfWeightsModel(model)
        if self.name == "O3":
            return PureHalfModel(model)
        if self.name == "tf32":
            _switch_tf32_on()
        return AutocastModel(model, self.autocast) if self.name in ("bf16", "fp16") else model


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of what the Trainer has wrapped it in."""
    while isinstance(model, PrecisionModel | Replica | ShardedModel):
        model = model.module
    return model


def _best(device: torch.device) -> str:
    if device.type != "cuda":
        return "fp32"
    return "bf16" if _is_from_ampere_on(device) else "fp16"


def _is_from_ampere_on(device: torch.device) -> bool:
    """Check the hardware; ``torch.cuda.is_bf16_supported`` counts emulation, too."""
    return torch.cuda.get_device_capability(device) >= _AMPERE


def _switch_tf32_on() -> None:
    if torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32:
        return
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    logger.info("float32 matrix products and convolutions are computed in TF32 from now on, in all of this process")


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
