"""How many floating point operations a micro-batch takes, counted once, and what part of the device's peak that is."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from smddp.metrics.peak_flops import peak_flops

logger = logging.getLogger(__name__)


class StepFlops:
    """Counts the first micro-batch by torch's FlopCounterMode: matrix products, convolutions and attention.

    What activation checkpointing computes again counts, and kernels that torch does not know (Triton's) do not.

    Args:
        model: What is trained. A model under ``torch.compile`` can't be counted; the log says so.
        device: The rank's.
        dtype: The type that its matrix products are computed in.
        speaks: Whether this rank may say something.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype, *, speaks: bool = True) -> None:
        self._peak = peak_flops(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None
        self._counter: Any = None  # a FlopCounterMode while it counts; torch has no types for it
        self._flops: int | None = None
        self._is_over = _is_compiled(model)
        if self._is_over and speaks:
            logger.info(
                "operations can't be counted under torch.compile: there is no tflops and no mfu in the metric lines; "
                "count them once without it"
            )

    def begin_micro_batch(self) -> None:
        """Begin to count, once."""
        if self._counter is not None:
            self.give_up_micro_batch()  # it had no backward pass
        if not self._is_over:
            from torch.utils.flop_counter import FlopCounterMode  # takes a seventh of a second

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()

    def end_micro_batch(self) -> None:
        """End the count of a micro-batch's forward and backward pass."""
        counter = self._counter
        if counter is not None:
            self.give_up_micro_batch()
            self._flops = int(counter.get_total_flops())
            self._is_over = True

    def give_up_micro_batch(self) -> None:
        """Count no more, whatever came between."""
        if self._counter is not None:
            counter, self._counter = self._counter, None
            counter.__exit__(None, None, None)

    def rates(self, micro_batches_a_second: float) -> dict[str, float]:
        """Return ``tflops``, and ``mfu`` where the peak is known; nothing if nothing was counted."""
        if not self._flops:
            return {}
        rate = self._flops * micro_batches_a_second
        return {"tflops": rate / 1e12} | ({} if self._peak is None else {"mfu": rate / self._peak})


def _is_compiled(model: nn.Module) -> bool:
    # An OptimizedModule (torch._dynamo takes a second to import), or one after its own compile().
    return any(hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) for each in model.modules())
