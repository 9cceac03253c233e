"""Copies the state into memory that is reused for every save. Training waits for this copy only.

Each file is laid out in memory byte for byte, so that the background thread writes and hashes it without torch and
without the state, which training changes. The memory is allocated and touched once.

The memory is handed over without a lock: the training thread copies, the background thread reads, and the next copy
starts only after the background thread has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from smddp.accelerator import has_streams
from smddp.checkpoint.format.tensors import Entry, Layout, allocate, tensor_at
from smddp.checkpoint.save.device_copies import DeviceCopies
from smddp.threads import work_together

_PIECE = 8 * 2**20
"""Bytes that a thread takes at a time: milliseconds of work."""

_BYTES_A_THREAD = 32 * 2**20
"""Bytes per thread, at least: a smaller copy starts fewer threads."""

_MOST_THREADS = 8
"""A few threads already use all the memory bandwidth."""

logger = logging.getLogger(__name__)

_RUN = 64 * 2**20
"""Bytes of tensors that one call copies, at most: more would save no time, and fill the memory budget less evenly."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an item: PyTorch copies tensors of several dtypes as one only if it sees them as one dtype."""

_ALIGNMENT = 64  # bytes: a cache line
_PAGE = 4096  # bytes: the smallest page of a kernel

Signature = tuple[tuple[str, torch.dtype, torch.Size, torch.device], ...]


@dataclass(kw_only=True, slots=True, frozen=True)
class StagedFile:
    """The bytes of a file to write."""

    name: str
    layout: Layout
    content: memoryview
    """The bytes, valid until the next copy. Those from a device are complete once `DeviceCopies.wait` returns."""


class Staging:
    """The memory for the state of one save, reused for the next. As large as the largest state so far.

    It is pinned if tensors come from a GPU: they are then copied asynchronously, at the full speed of the bus. Memory
    that cannot be pinned is used unpinned.
    """

    def __init__(self, device_copies: DeviceCopies | None = None) -> None:
        """Allocate nothing yet. ``device_copies`` copies the tensors of devices with streams."""
        self._device_copies = device_copies
        self._memory = memoryview(b"")
        self._pinned: torch.Tensor | None = None
        self._files: list[StagedFile] = []
        self._views: list[list[tuple[str, torch.Tensor, int, int]]] = []  # by file: name, view, address, bytes
        self._runs: list[list[_Run]] = []  # by file
        self._signatures: dict[str, Signature] = {}

    def prepare(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Allocate and touch the memory for these files, so that the first copy is fast. Any thread may call it."""
        self._arrange(files)
        if len(self._memory) > 0:  # 0 on a rank that writes nothing
            np.frombuffer(self._memory, dtype=np.uint8)[::_PAGE] = 0  # releases the GIL

    def copy(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> list[StagedFile]:
        """Copy the tensors of each file, on any device, with any strides, and return the files in the same order.

        Training may change the tensors of the CPU once this returns, those of devices after `DeviceCopies.launching`.
        """
        self._arrange(files)
        spans: list[Span] = []
        for staged, views, runs in zip(self._files, self._views, self._runs, strict=True):
            tensors = files[staged.name]
            for run in runs:
                assert self._device_copies is not None
                self._device_copies.copy(run.target, [tensors[name] for name in run.names])
            staged.content[: len(staged.layout.header)] = staged.layout.header
            for name, view, address, size in views:
                tensor = tensors[name]
                if _is_plain(tensor):
                    spans.append(Span(address, tensor.data_ptr(), size))
                else:
                    view.copy_(tensor)
        copy_spans(spans)
        return list(self._files)

    def _arrange(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Assign memory to each file and tensor, unless names, dtypes, shapes and devices are unchanged."""
        signatures = {name: _signature(tensors) for name, tensors in files.items()}
        if signatures == self._signatures and list(signatures) == list(self._signatures):
            return
        layouts = {name: Layout.of(tensors) for name, tensors in files.items()}
        starts, end = [], 0
        for layout in layouts.values():
            starts.append(end)
            end += -(-layout.size // _ALIGNMENT) * _ALIGNMENT
        self._signatures, self._files, self._views, self._runs = {}, [], [], []
        self._reserve(end, gpu=next(iter(_gpus(files)), None))
        for (name, layout), start in zip(layouts.items(), starts, strict=True):
            content = self._memory[start : start + layout.size]
            self._files.append(StagedFile(name=name, layout=layout, content=content))
            on_device = {entry.name for entry in layout.entries if has_streams(files[name][entry.name].device)}
            copied = [entry for entry in layout.entries if entry.name not in on_device]
            views = [tensor_at(content, entry.start, entry.dtype, entry.shape) for entry in copied]
            self._views.append(
                [(entry.name, view, view.data_ptr(), entry.size) for entry, view in zip(copied, views, strict=True)]
            )
            self._runs.append(_runs(content, [each for each in layout.entries if each.name in on_device], files[name]))
        self._signatures = signatures

    def _reserve(self, size: int, *, gpu: torch.device | None) -> None:
        """Allocate at least `size` bytes, pinned if a GPU copies to them, unless the present memory suffices."""
        if size <= len(self._memory) and (self._pinned is not None or gpu is None):
            return
        logger.debug(
            "taking %.1f MB of %s memory to save from, instead of %.1f MB",
            size / 1e6,
            "plain" if gpu is None else "pinned",
            len(self._memory) / 1e6,
        )
        self._memory, self._pinned = memoryview(b""), None  # free the old memory before allocating
        if gpu is None or gpu.type == "cuda":
            self._memory = allocate(size, shared=True)  # with forks: no copy on write when DataLoader workers fork
            self._pinned = None if gpu is None else _pin(self._memory, gpu)
        else:
            self._pinned = _allocate_pinned(size)
            self._memory = memoryview(self._pinned.numpy().data)


class _Run(NamedTuple):
    """Neighbouring tensors of a file on one device, copied by one call."""

    names: list[str]
    target: torch.Tensor
    """Their bytes in the file: a flat tensor of integers as wide as an item."""


def _runs(content: memoryview, entries: Sequence[Entry], tensors: Mapping[str, torch.Tensor]) -> list[_Run]:
    """Divide a file's entries of tensors on devices into runs of at most `_RUN` bytes, or of one larger tensor."""
    grouped: list[list[Entry]] = []
    for entry in entries:
        if entry.size == 0:
            continue
        last = grouped[-1] if grouped else []
        if (
            last
            and last[-1].start + last[-1].size == entry.start
            and last[-1].dtype.itemsize == entry.dtype.itemsize
            and tensors[last[-1].name].device == tensors[entry.name].device
            and entry.start + entry.size - last[0].start <= _RUN
        ):
            last.append(entry)
        else:
            grouped.append([entry])
    runs = []
    for run in grouped:
        items = sum(entry.size for entry in run) // run[0].dtype.itemsize
        target = tensor_at(content, run[0].start, _INTEGERS[run[0].dtype.itemsize], (items,))
        runs.append(_Run([entry.name for entry in run], target))
    return runs


def _gpus(files: Mapping[str, Mapping[str, torch.Tensor]]) -> set[torch.device]:
    """Return the devices whose copies run while training goes on."""
    devices = {tensor.device for each in files.values() for tensor in each.values()}
    return {device for device in devices if has_streams(device)}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory can be written to a file unchanged."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _signature(tensors: Mapping[str, torch.Tensor]) -> Signature:
    return tuple((name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in tensors.items())


def _pin(memory: memoryview, gpu: torch.device) -> torch.Tensor:
    """Pin memory for the lifetime of the returned tensor. On failure, log a warning and leave the memory unpinned."""
    # PyTorch's own allocator of pinned memory rounds up, to twice the size at worst.
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    with torch.cuda.device(gpu):
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.numel(), 1))  # 1: for every CUDA context
    if code == 0:
        unpin = weakref.finalize(tensor, cudart.cudaHostUnregister, tensor.data_ptr())
        unpin.atexit = False  # CUDA may be gone by then
    else:
        _forget_error(gpu)
        logger.warning("could not pin %.1f MB (CUDA error %d): saving takes longer", tensor.numel() / 1e6, code)
    return tensor


def _allocate_pinned(size: int) -> torch.Tensor:
    """Allocate memory that PyTorch pins for an accelerator other than CUDA; unpinned if that fails, with a warning."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        logger.warning("could not pin %.1f MB (%s): saving takes longer", size / 1e6, error)
        return torch.empty(size, dtype=torch.uint8)


def _forget_error(gpu: torch.device) -> None:
    """Clear this thread's last CUDA error, which PyTorch would otherwise raise after the next kernel."""
    # PyTorch has no binding of cudaGetLastError, but calls it after each kernel: launch one whose error is ignored.
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=gpu)


# Why not Tensor.copy_ for memory on the CPU: PyTorch copies with several threads, too, but gives each a fixed share of
# every tensor and waits for all. When other processes use the cores, such as DataLoader workers, each tensor waits for
# the slowest thread. Here each free thread takes the next piece, and the only wait is at the end, for one piece per
# thread.


class Span(NamedTuple):
    """A copy of `size` bytes between two addresses. The caller keeps both memories alive until it ends."""

    target: int
    source: int
    size: int


def copy_spans(spans: Iterable[Span]) -> None:
    """Copy all spans, with at most `torch.get_num_threads()` threads. The copies release the GIL."""
    pieces: list[tuple[int, int, int]] = []
    total = 0
    for target, source, size in spans:
        total += size
        if size <= _PIECE:
            pieces.append((target, source, size))
        else:
            pieces += [(target + at, source + at, min(_PIECE, size - at)) for at in range(0, size, _PIECE)]
    threads = min(torch.get_num_threads(), _MOST_THREADS, total // _BYTES_A_THREAD)
    left = iter(pieces)  # shared by the threads: under the GIL no two get the same piece

    def work() -> None:
        for target, source, size in left:
            ctypes.memmove(target, source, size)

    # Also after Ctrl-C no thread copies any more: the caller may free the memories once this returns.
    work_together(work, threads=threads, name="smddp-checkpoint-copy", stop=lambda _: deque(left, maxlen=0))
