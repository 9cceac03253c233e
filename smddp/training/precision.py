"""Choose the number format that a model computes in, by name: automatic mixed precision, TF32, and Apex's levels.

This file decides what a name means on a device, and refuses what the device can't do. The forward passes are in
precision_models.py.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.amp import GradScaler

from smddp.distributed import Replica, ShardedModel
from smddp.training.precision_models import AutocastModel, HalfWeightsModel, PrecisionModel, PureHalfModel

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
