"""The copy of the state that training waits for: into memory that is kept from one save to the next.

Each file to be written is put together in memory, byte for byte, so that writing and hashing it afterwards need nothing
of torch and nothing of the state, which training changes meanwhile. The memory is taken and touched once: what a save
costs training is one copy of the state.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from smddp.checkpoint.format.memory import allocate, tensor_at
from smddp.checkpoint.format.tensors import Layout
from smddp.checkpoint.save.gpu_copies import GpuCopies
from smddp.checkpoint.save.parallel_copy import Span, copy_spans

logger = logging.getLogger(__name__)

_ALIGNMENT = 64  # bytes: a cache line
_PAGE = 4096  # bytes: the smallest that a kernel hands over

Signature = tuple[tuple[str, torch.dtype, torch.Size, torch.device], ...]


@dataclass(kw_only=True, slots=True, frozen=True)
class StagedFile:
    """A file as it is to be written."""

    name: str
    layout: Layout
    content: memoryview
    """All its bytes, valid until the next copy. What came from a GPU is there once `Staging.await_copies` returns."""


class Staging:
    """The memory that holds the state of one save, and is used again for the next.

    It is as large as the largest state so far, and pinned where tensors come from a GPU, so that they are copied at the
    bus's full speed while the CPU goes on. Memory that can't be pinned is used as it is.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._pinned: torch.Tensor | None = None
        self._files: list[StagedFile] = []
        self._views: list[list[tuple[str, torch.Tensor, int, int]]] = []  # name, place, its address and bytes
        self._signatures: dict[str, Signature] = {}
        self._gpu_copies = GpuCopies([])
        self._copy_seconds = 0.0  # for which the last copy kept the CPU

    def prepare(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take the memory for these files and touch it, so that the copy finds it ready; may run beside training."""
        self._arrange(files)
        if len(self._memory) > 0:  # a rank that writes nothing has none
            np.frombuffer(self._memory, dtype=np.uint8)[::_PAGE] = 0  # lets go of the GIL

    def copy(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> list[StagedFile]:
        """Copy tensors as they are now; they may be changed as soon as this returns.

        Args:
            files: By the file's name the tensors in it by theirs, on any device, with any strides.

        Returns:
            The files in the same order.
        """
        self._arrange(files)
        started = time.perf_counter()
        self._gpu_copies = GpuCopies(
            {tensor.device for each in files.values() for tensor in each.values() if tensor.is_cuda}
        )
        spans: list[Span] = []
        for staged, views in zip(self._files, self._views, strict=True):
            tensors = files[staged.name]
            staged.content[: len(staged.layout.header)] = staged.layout.header
            for name, view, address, size in views:
                tensor = tensors[name]
                if _is_plain(tensor):
                    spans.append(Span(address, tensor.data_ptr(), size))
                else:
                    view.copy_(tensor, non_blocking=tensor.is_cuda)
        self._gpu_copies.end()
        copy_spans(spans)  # the CPU's own, while the GPUs copy
        self._copy_seconds = time.perf_counter() - started
        return list(self._files)

    def await_copies(self) -> float:
        """Return once everything has come from the GPUs.

        Returns:
            The seconds for which the copies held training up on a GPU, beyond those that `copy` kept the CPU.
        """
        return max(self._gpu_copies.wait() - self._copy_seconds, 0.0)

    def _arrange(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Give each file its place in the memory, and each tensor its own; nothing to do if all is as the last time."""
        signatures = {name: _signature(tensors) for name, tensors in files.items()}
        if signatures == self._signatures and list(signatures) == list(self._signatures):
            return
        layouts = {name: Layout.of(tensors) for name, tensors in files.items()}
        starts, end = [], 0
        for layout in layouts.values():
            starts.append(end)
            end += -(-layout.size // _ALIGNMENT) * _ALIGNMENT
        self._signatures, self._files, self._views = {}, [], []
        on_gpu = (tensor.device for each in files.values() for tensor in each.values() if tensor.is_cuda)
        self._reserve(end, gpu=next(on_gpu, None))
        for (name, layout), start in zip(layouts.items(), starts, strict=True):
            content = self._memory[start : start + layout.size]
            self._files.append(StagedFile(name=name, layout=layout, content=content))
            views = [tensor_at(content, entry.start, entry.dtype, entry.shape) for entry in layout.entries]
            self._views.append(
                [
                    (entry.name, view, view.data_ptr(), entry.size)
                    for entry, view in zip(layout.entries, views, strict=True)
                ]
            )
        self._signatures = signatures

    def _reserve(self, size: int, *, gpu: torch.device | None) -> None:
        """Have at least so many bytes, pinned if a GPU copies to them."""
        if size <= len(self._memory) and (self._pinned is not None or gpu is None):
            return
        logger.debug(
            "taking %.1f MB of %s memory to save from, instead of %.1f MB",
            *(size / 1e6, "plain" if gpu is None else "pinned", len(self._memory) / 1e6),
        )
        self._memory, self._pinned = memoryview(b""), None  # give back first: never more than the state at once
        self._memory = allocate(size, shared=True)  # data loader workers are forked while training goes on
        if gpu is not None:
            self._pinned = _pin(self._memory, gpu)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether its values lie in the CPU's memory as they are to be written."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _signature(tensors: Mapping[str, torch.Tensor]) -> Signature:
    return tuple((name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in tensors.items())


def _pin(memory: memoryview, gpu: torch.device) -> torch.Tensor:
    """Pin memory for as long as what is returned lives; if that fails, leave it as it is, which is slower.

    Not by torch's own allocator of pinned memory, which takes up to twice what it is asked for.
    """
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


def _forget_error(gpu: torch.device) -> None:
    """Take the error that a call to CUDA has left in this thread, which the next kernel would be blamed for.

    Torch's binding lacks cudaGetLastError, but torch calls it after each kernel: let that be one that does not matter.
    """
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=gpu)
