"""Count the floating point operations of one micro-batch, and compute the rate and its share of the device's peak."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from smddp.metrics.peak_flops import peak_flops

logger = logging.getLogger(__name__)


class StepFlops:
    """Count the first micro-batch with torch's FlopCounterMode: matrix products, convolutions and attention.

    Recomputation by activation checkpointing counts; kernels unknown to torch, such as Triton's, do not. A model under
    ``torch.compile`` can't be counted, and a log line says so if ``speaks``.
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
        """Begin to count, unless a micro-batch was counted already."""
        if self._counter is not None:
            self.give_up_micro_batch()  # the last one had no backward pass
        if not self._is_over:
            from torch.utils.flop_counter import FlopCounterMode  # takes a seventh of a second

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()

    def end_micro_batch(self) -> None:
        """End the count, after a micro-batch's forward and backward pass."""
        counter = self._counter
        if counter is not None:
            self.give_up_micro_batch()
            self._flops = int(counter.get_total_flops())
            self._is_over = True

    def give_up_micro_batch(self) -> None:
        """Stop a count that is under way, and discard it."""
        if self._counter is not None:
            counter, self._counter = self._counter, None
            counter.__exit__(None, None, None)

    def rates(self, micro_batches_a_second: float) -> dict[str, float]:
        """Return ``tflops``, and ``mfu`` if the device's peak is known; nothing without a count."""
        if not self._flops:
            return {}
        rate = self._flops * micro_batches_a_second
        return {"tflops": rate / 1e12} | ({} if self._peak is None else {"mfu": rate / self._peak})


def _is_compiled(model: nn.Module) -> bool:
    # An OptimizedModule (torch._dynamo takes a second to import), or one after its own compile().
    return any(hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) for each in model.modules())
