"""Which number format a model computes in: fp32, bf16 or fp16, by PyTorch's automatic mixed precision.

Weights, gradients and optimizer state stay float32; only the model's forward pass runs in the lower precision.
This file neither casts a model for good (``model.half()``) nor touches TF32, which is PyTorch's own switch:
``torch.set_float32_matmul_precision("high")``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]

_CPU = torch.device("cpu")
_BF16_CAPABILITY = (8, 0)  # Ampere; what is older only emulates bf16, and slowly
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision on a device.

    Example:
        >>> precision = Precision("bf16", torch.device("cpu"))
        >>> model = precision.wrap(torch.nn.Linear(2, 1))
        >>> model(torch.ones(1, 2)).dtype
        torch.float32

    Raises:
        ValueError: If the name is unknown, or the device cannot compute in that precision.
    """

    requested: PrecisionName = "auto"
    """What was asked for. ``"auto"`` is fp32 on a CPU, bf16 on a GPU that has it in hardware, else fp16; a GPU that
    only emulates bf16, slower than fp32, is refused."""

    device: torch.device = _CPU
    """Where the model computes."""

    name: str = field(init=False)
    """What it came to: ``"fp32"``, ``"bf16"`` or ``"fp16"``."""

    def __post_init__(self) -> None:
        if self.requested not in get_args(PrecisionName):
            allowed = ", ".join(repr(name) for name in get_args(PrecisionName))
            raise ValueError(f"precision={self.requested!r} is unknown; use one of {allowed}")
        name = _best(self.device) if self.requested == "auto" else self.requested
        if name == "bf16" and self.device.type == "cuda" and not _computes_bf16(self.device):
            raise ValueError(
                f"precision='bf16' needs a GPU that has it in hardware, and {torch.cuda.get_device_name(self.device)} "
                "has not; use 'fp16' or 'auto'"
            )
        object.__setattr__(self, "name", name)

    @property
    def dtype(self) -> torch.dtype:
        """The type that matrix products and convolutions are computed in."""
        return _DTYPES[self.name]

    def autocast(self) -> AbstractContextManager[Any]:
        """A context whose operations choose this precision; it does nothing for fp32."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def scaler(self) -> GradScaler | None:
        """The loss scaler that fp16's narrow range needs; None for fp32 and bf16, whose range is float32's."""
        return GradScaler(self.device.type) if self.name == "fp16" else None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its forward pass in this precision; for fp32 the model itself.

        A model that returns one tensor returns it as float32, for a loss outside of autocast. Whatever else it returns
        (a tuple, a dict, an object of its own) is handed on as it is, its tensors in the precision that they were
        computed in: call ``.float()`` on those that a loss takes. In fp32 that costs nothing.

        Example:
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
        return model if self.name == "fp32" else MixedPrecisionModel(model, self)


class MixedPrecisionModel(nn.Module):
    """A model whose forward pass runs under autocast, in training and in evaluation alike.

    What it returns is for the script, whose types are its own: only a tensor that is all of the output is converted.
    """

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module = module
        self._precision = precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped model."""
        with self._precision.autocast():
            outputs = self.module(*args, **kwargs)
        if isinstance(outputs, Tensor) and outputs.dtype in _LOW:
            return outputs.float()  # cross_entropy under autocast would make the same copy
        return outputs


def without_precision(model: nn.Module) -> nn.Module:
    """Return the model that `Precision.wrap` was given."""
    return model.module if isinstance(model, MixedPrecisionModel) else model


def _best(device: torch.device) -> str:
    if device.type != "cuda":
        return "fp32"
    return "bf16" if _computes_bf16(device) else "fp16"


def _computes_bf16(device: torch.device) -> bool:
    """Whether a GPU has bf16 in hardware; ``torch.cuda.is_bf16_supported`` counts emulation, too."""
    return torch.cuda.get_device_capability(device) >= _BF16_CAPABILITY
