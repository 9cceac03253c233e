"""Copy a save's tensors from devices to pinned CPU memory while training continues.

Training may change a tensor once the snapshot is taken. So the tensors are first copied on the device, into a buffer,
and a stream of its own transfers the buffer to the CPU. What exceeds the memory budget is transferred in training's
stream, which stalls training meanwhile.

Notes on device memory:
  1. The buffer takes at most half of what training has left free at its peak so far. PyTorch counts one peak for
     training and buffers. If it exceeds the peak right after the last buffer was allocated, it is training's own. If
     not, training's peak exceeds the known one by at most the size of that buffer, which the other half covers.
  2. The buffer is freed at once, and `record_stream` delays its reuse until the transfers end. If training needs more
     memory than ever before, CUDA's allocator waits for the transfers, and may then find memory only in pieces.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from smddp.accelerator import device_module, peak_device_memory, synchronize, usable_device_memory
from smddp.cluster.gpus import shares_gpu

logger = logging.getLogger(__name__)

_ALIGNMENT = 512  # bytes: what CUDA's allocator gives, enough for every dtype


class DeviceCopies:
    """The copies of one save at a time: `copy` tensors within `launching`, then `wait` for them in any thread.

    No lock: the training thread launches, the background thread waits, and the next save begins only after that.
    """

    def __init__(self) -> None:
        self._devices: dict[torch.device, _DeviceCopy] = {}
        self._used: dict[torch.device, _DeviceCopy] = {}
        """The devices of the present save."""
        self._is_open = False
        self._is_awaited = True
        self._seconds = 0.0  # that training's thread launched copies

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Enclose the `copy` calls of one save. Training may change the tensors after it."""
        if not self._is_awaited:  # a save that failed: its transfers may still write to the memory of this one
            for device in self._used:
                synchronize(device)
        self._used, self._is_open, self._is_awaited = {}, True, False
        began = time.perf_counter()
        try:
            yield
            for copy in self._used.values():
                copy.launch()
        finally:
            self._is_open = False
            for copy in self._used.values():
                copy.forget()
        self._seconds = time.perf_counter() - began

    def copy(self, target: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
        """Copy the bytes of tensors, one after the other, to a flat tensor of the CPU with items of their size.

        They are all on one device, which has streams. The target is complete once `wait` returns.
        """
        assert self._is_open
        device = sources[0].device
        if device not in self._used:
            if device not in self._devices:
                self._devices[device] = _DeviceCopy(device)
            self._used[device] = self._devices[device]
            self._used[device].begin()
        self._used[device].add(target, sources)

    def wait(self) -> float:
        """Wait for all copies. Return the seconds that they stalled a device beyond the time of `launching`."""
        stalls = [copy.wait() for copy in self._used.values()]
        self._is_awaited = True
        return max(max(stalls, default=0.0) - self._seconds, 0.0)


class _Buffered(NamedTuple):
    """Tensors that are copied to the buffer, from a byte of it on."""

    target: torch.Tensor
    sources: Sequence[torch.Tensor]
    start: int


class _DeviceCopy:
    """The copies of one save from one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = device_module(device.type)
        self._stream: Any = None  # training's, of the present save
        self._transfer_stream: Any = None
        self._began: Any = None
        self._ended: Any = None
        self._transferred: Any = None
        self._budget = _MemoryBudget(device)
        self._available = self._size = 0
        self._buffered: list[_Buffered] = []

    def begin(self) -> None:
        """Record the start in training's stream."""
        self._stream = self._module.current_stream(self._device)
        self._began = self._record(self._stream)
        self._available, self._size = self._budget.available(), 0

    def add(self, target: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
        """Note tensors for the buffer; if it has no room for them, launch their transfer in training's stream."""
        size = -(-target.nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._size + size <= self._available:
            self._buffered.append(_Buffered(target, sources, self._size))
            self._size += size
        else:
            _transfer(target, sources)

    def launch(self) -> None:
        """Copy to the buffer, and launch its transfer."""
        buffer = self._budget.buffer(self._size)
        if buffer is None:
            for target, sources, _ in self._buffered:
                _transfer(target, sources)
            self._ended = self._transferred = self._record(self._stream)
            return
        copies = [buffer[each.start : each.start + each.target.nbytes] for each in self._buffered]
        for copy, each in zip(copies, self._buffered, strict=True):
            _copy_on_device(copy, each.sources, each.target.dtype)
        self._ended = self._record(self._stream)
        if self._transfer_stream is None:
            self._transfer_stream = self._module.Stream(self._device)
        buffer.record_stream(self._transfer_stream)
        self._transfer_stream.wait_event(self._ended)
        with self._module.stream(self._transfer_stream):
            for copy, each in zip(copies, self._buffered, strict=True):
                each.target.copy_(copy.view(each.target.dtype), non_blocking=True)
        self._transferred = self._record(self._transfer_stream)

    def forget(self) -> None:
        """Release the tensors."""
        self._buffered = []

    def wait(self) -> float:
        """Wait for the copies, in any thread. Return the seconds that training's stream took for them."""
        with self._module.device(self._device):  # a new thread would open a context on GPU 0
            self._transferred.synchronize()  # the transfer began after `_ended`
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def _record(self, stream: Any) -> Any:
        return stream.record_event(self._module.Event(enable_timing=True))


class _MemoryBudget:
    """What a buffer may take of a device's memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_shared = shares_gpu(os.environ)  # another process takes of the same memory
        self._needed = 0  # a lower bound of training's peak
        self._peak_of_buffer = 0
        """The peak right after the last buffer was allocated. Its memory counts as free from its end on."""
        self._limit: int | None = None  # after a buffer that could not be allocated

    def available(self) -> int:
        """Return the byte budget of the next buffer; 0 if the device does not report its memory."""
        usable, peak = usable_device_memory(self._device), peak_device_memory(self._device)
        if usable is None or peak is None or self._is_shared:
            return 0
        if peak > self._peak_of_buffer:
            self._needed = max(self._needed, peak)
        available = max(usable - self._needed, 0) // 2
        return available if self._limit is None else min(available, self._limit)

    def buffer(self, size: int) -> torch.Tensor | None:
        """Allocate a buffer; None if its size is 0 or the allocation fails."""
        if size == 0:
            return None
        try:
            buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:  # of any kind of device; torch 2.4 has it under this name alone
            self._limit = size // 2
            logger.debug("saving without a buffer on %s: %s", self._device, error)
            return None
        self._peak_of_buffer = peak_device_memory(self._device) or 0
        return buffer


def _copy_on_device(copy: torch.Tensor, sources: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    if len(sources) == 1:  # at the speed of the memory, with any strides
        copy.view(sources[0].dtype).view(sources[0].shape).copy_(sources[0])
    else:  # one call for many small tensors: a call for each takes longer than their copies
        torch.cat([_flat(source, dtype) for source in sources], out=copy.view(dtype))


def _transfer(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
    """Launch the transfer of tensors to the CPU in the current stream."""
    start = 0
    for source in sources:
        target[start : start + source.numel()].copy_(_flat(source, target.dtype), non_blocking=True)
        start += source.numel()


def _flat(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor's values in one dimension, as items of another dtype of the same size."""
    # Both bits are resolved on the device: PyTorch would resolve them on the CPU, before the transfer has ended.
    return source.resolve_conj().resolve_neg().reshape(-1).view(dtype)
