"""How a run uses its device: floating point operations a second, their share of the device's peak, and peak memory."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smddp.accelerator import device_name, peak_device_memory

logger = logging.getLogger(__name__)

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)

# Peak floating point operations a second of NVIDIA's GPUs, for dense matrices, from NVIDIA's data sheets.
#
# Figures with sparsity are halved. The numbers are 10¹² a second, at boost clock.
_Peaks = dict[str, float]

_H100_SXM: _Peaks = {"fp32": 67, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5}

_PEAKS: list[tuple[str, _Peaks]] = [
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    (r"V100-SXM2", {"fp32": 15.7, "fp16": 125}),
    (r"V100-PCIE", {"fp32": 14, "fp16": 112}),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    (r"T4", {"fp32": 8.1, "fp16": 65}),
    # https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    (r"A10G", {"fp32": 35, "tf32": 35, "bf16": 70, "fp16": 70}),
    # https://www.nvidia.com/en-us/data-center/l4/ (with sparsity: 120, 242)
    (r"L4", {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121}),
    # https://www.nvidia.com/en-us/data-center/l40s/ (with sparsity: 366, 733)
    (r"L40S", {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362}),
    # https://www.nvidia.com/en-us/data-center/a100/
    (r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
    # https://www.nvidia.com/en-us/data-center/h100/ (with sparsity)
    (r"H100 80GB HBM3", _H100_SXM),
    (r"H100 PCIe", {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756}),
    (r"H100 NVL", {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5}),
    # https://www.nvidia.com/en-us/data-center/h200/ (with sparsity)
    (r"H200", _H100_SXM),
    # https://www.nvidia.com/en-us/data-center/hgx/ (eight of them, with sparsity)
    (r"B200", {"fp32": 75, "tf32": 1125, "bf16": 2250, "fp16": 2250}),
]


class StepFlops:
    """Counts the operations of the first micro-batch by FlopCounterMode: matrix products, convolutions, attention.

    Recomputation by activation checkpointing counts; kernels unknown to torch, such as Triton's, do not. A model under
    ``torch.compile`` can't be counted, and a log line says so if ``logs``.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype, *, logs: bool = True) -> None:
        self._peak = None if device.type == "cpu" else peak_flops(device_name(device), dtype)
        self._counter: Any = None  # a FlopCounterMode while it counts; torch has no types for it
        self._flops: int | None = None
        self._is_over = _is_compiled(model)
        if self._is_over and logs:
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


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """Return a GPU's peak FLOP/s for matrix products of this type; None if unknown, as for a part of a GPU (MIG).

    ``device_name`` is from ``torch.cuda.get_device_name``. float32 counts as TF32 if
    ``torch.set_float32_matmul_precision`` allows it.

    Examples:
        >>> peak_flops("NVIDIA H100 80GB HBM3", torch.bfloat16)
        989500000000000.0
    """
    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}.get(dtype)
    if name == "fp32" and torch.get_float32_matmul_precision() != "highest":
        name = "tf32"
    for pattern, peaks in _PEAKS:
        if re.fullmatch(rf"(NVIDIA |Tesla )*({pattern})(-\d+GB)?", device_name):
            peak = peaks.get(name or "", peaks["fp32"] if name == "tf32" else None)
            return None if peak is None else peak * 1e12
    return None


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the tensors on a GPU, or of the whole process for a CPU."""
    if device.type != "cpu" and (peak := peak_device_memory(device)) is not None:
        return peak
    found = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024
