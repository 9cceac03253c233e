"""The copies of a save from devices to CPU memory, beside training's next steps as far as device memory allows.

Training may change any tensor once a snapshot is taken. A copy over the bus, in training's stream, would stall training
for all of its time. So the tensors are first copied on the device, which takes about a hundredth of that, and a stream
of its own brings this copy to CPU memory. Tensors for which the device has no room go over the bus in training's
stream.

Notes on device memory:
  1. The copy on the device is one block per save. It takes at most half of what training leaves, so it also fits if
     training's peak contains the block of an earlier save, or grows as much again.
  2. The block is given back at once, and the allocator reuses it when its copies have arrived (`record_stream`). CUDA's
     allocator waits for such memory before it reports that none is left.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from smddp.accelerator import device_module, peak_device_memory, usable_device_memory

logger = logging.getLogger(__name__)

_ALIGNMENT = 512  # bytes: what CUDA's allocator gives, enough for every dtype


class DeviceCopies:
    """The copies of one save at a time, from all devices: `begin`, `copy` each tensor, `end`, and `wait` for them.

    No lock: the training thread calls the first three, the background thread `wait`, and the next save begins only
    after that.
    """

    def __init__(self) -> None:
        self._devices: dict[torch.device, _CopiesOfDevice] = {}
        self._used: set[torch.device] = set()  # by the present save
        self._is_open = False
        self._began = self._seconds = 0.0

    def begin(self) -> None:
        """Begin a save."""
        self._used, self._is_open = set(), True
        self._began = time.perf_counter()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a tensor of a device with streams to memory of the CPU, complete once `wait` returns."""
        assert self._is_open
        device = source.device
        if device not in self._used:
            self._devices.setdefault(device, _CopiesOfDevice(device)).begin()
            self._used.add(device)
        self._devices[device].copy(target, source)

    def end(self) -> None:
        """Launch the rest of the copies, without waiting. Training may change the tensors once this returns."""
        for device in self._used:
            self._devices[device].end()
        self._is_open = False
        self._seconds = time.perf_counter() - self._began

    def wait(self) -> float:
        """Wait for all copies. Return the seconds that they stalled a device beyond the time from `begin` to `end`."""
        stalls = [self._devices[device].wait() for device in self._used]
        return max(max(stalls, default=0.0) - self._seconds, 0.0)


class _CopiesOfDevice:
    """The copies of one save from one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = device_module(device.type)
        self._stream: Any = None  # training's stream of the present save
        self._bus_stream: Any = None  # brings blocks to CPU memory
        self._began: Any = None
        self._ended: Any = None
        self._arrived: Any = None
        self._room = 0
        self._size = 0
        self._for_block: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # target, source, where in the block
        self._memory = _MemoryOfTraining(device)

    def begin(self) -> None:
        """Record the start in training's stream."""
        self._stream = self._module.current_stream(self._device)
        self._began = self._record(self._stream)
        self._room, self._size, self._for_block = self._memory.room(), 0, []

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Note a tensor for the block; launch its copy over the bus if the block is full."""
        size = -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._size + size <= self._room:
            self._for_block.append((target, source, self._size))
            self._size += size
        else:
            _copy_over_bus(target, source)

    def end(self) -> None:
        """Copy to the block, and launch its copies over the bus."""
        block = self._memory.block(self._size)
        launched = []
        for target, source, start in self._for_block:
            if block is None:
                _copy_over_bus(target, source)
                continue
            copy = block[start : start + source.nbytes].view(source.dtype).view(source.shape)
            copy.copy_(source)
            launched.append((target, copy))
        self._for_block = []
        self._ended = self._arrived = self._record(self._stream)
        if block is None:
            return
        if self._bus_stream is None:
            self._bus_stream = self._module.Stream(self._device)
        self._bus_stream.wait_event(self._ended)
        with self._module.stream(self._bus_stream):
            for target, copy in launched:
                _copy_over_bus(target, copy)
        block.record_stream(self._bus_stream)
        self._arrived = self._record(self._bus_stream)

    def wait(self) -> float:
        """Wait for the copies, in any thread. Return the seconds that training's stream took for them."""
        with self._module.device(self._device):  # a new thread would open a context on GPU 0
            self._arrived.synchronize()  # the block's copies began after `_ended`
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def _record(self, stream: Any) -> Any:
        return stream.record_event(self._module.Event(enable_timing=True))


class _MemoryOfTraining:
    """The device memory that training needs, as far as it is known, and what a save may take beside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak = 0  # of all tensors, blocks included
        self._needed = 0  # the part of the peak that is training's for certain
        self._block_size = 0  # of the last save
        self._limit: int | None = None  # after a block that the device could not give

    def room(self) -> int:
        """Return the bytes that the next block may have; 0 for a device that does not count its memory."""
        usable, peak = usable_device_memory(self._device), peak_device_memory(self._device)
        if usable is None or peak is None:
            return 0
        if peak > self._peak:  # the last block may be part of it
            self._peak, self._needed = peak, max(self._needed, peak - self._block_size)
        room = max(usable - self._needed, 0) // 2
        return room if self._limit is None else min(room, self._limit)

    def block(self, size: int) -> torch.Tensor | None:
        """Allocate the bytes of a block; None if there are none to allocate, or if they are in no one piece."""
        self._block_size = 0
        if size == 0:
            return None
        try:
            block = torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:  # of any kind of device; its other name is newer than torch 2.4
            self._limit = size // 2
            logger.debug("saving without a copy on %s: %s", self._device, error)
            return None
        self._block_size = size
        return block


def _copy_over_bus(target: torch.Tensor, source: torch.Tensor) -> None:
    """Launch a copy in the current stream."""
    # PyTorch would resolve these bits in the target, on the CPU, before the copy has arrived.
    target.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)
