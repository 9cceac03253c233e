"""A GPU that is none: tensors that say they are on one, and as much of torch.cuda as saving asks for.

It shows what is asked of a GPU, and in which order; that a real one then does it is for the tests that need one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says otherwise."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    device = property(lambda self: DEVICE)  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and StandInGpu.present is not None:
            StandInGpu.present.calls.append("copy" if (kwargs or {}).get("non_blocking") else "blocking copy")
        return super().__torch_function__(func, types, args, kwargs or {})


class StandInGpu:
    """What was asked of it, and how it answers."""

    present: StandInGpu | None = None

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.copy_seconds = 0.0
        self.register_code = 0
        self.last_error = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the GPU until the test ends."""
        gpu, ones = self, torch.ones

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                self.enable_timing = enable_timing

            def synchronize(self) -> None:
                gpu.calls.append("synchronize")

            def elapsed_time(self, end: Event) -> float:
                assert self.enable_timing
                assert end.enable_timing
                return gpu.copy_seconds * 1e3

        class Stream:
            def record_event(self, event: Event | None = None) -> Event:
                gpu.calls.append("record")
                return Event() if event is None else event

        class Cudart:
            def cudaHostRegister(self, _address: int, _size: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
                gpu.last_error = gpu.register_code
                return gpu.register_code

            def cudaHostUnregister(self, _address: int) -> int:  # noqa: N802 - CUDA's name
                return 0

        def launch(*size: int, device: torch.device | None = None, **options: Any) -> torch.Tensor:
            """As torch does after each kernel: takes the last error, and raises it."""
            code = gpu.last_error
            if device == DEVICE and code:
                gpu.last_error = 0
                raise RuntimeError(f"CUDA error: {code}")
            return ones(*size, **options)

        monkeypatch.setattr(StandInGpu, "present", gpu)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        for name in ("max_memory_allocated", "memory_reserved"):
            monkeypatch.setattr(torch.cuda, name, lambda device: 0)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))  # no memory for a buffer
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "cudart", Cudart)
        monkeypatch.setattr(torch, "ones", launch)


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, on the GPU that is none."""
    return tensor.as_subclass(OnGpu)
