"""Allocate hundreds of megabytes at a time, in huge pages.

The kernel zeroes each page on its first access. With pages of 4 KiB this takes several times as long as reading a
checkpoint into the memory; with pages of 2 MiB the time is negligible.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

_HUGE_PAGE = 2 * 2**20  # bytes


def allocate(size: int, *, shared: bool = False) -> memoryview:
    """Allocate `size` zeroed bytes, at least one, freed by garbage collection. Raise MemoryError if that fails.

    `shared` memory stays common to this process and its forks. Otherwise a fork makes every page copy-on-write, and the
    next write takes the memory once more, and many times as long.
    """
    try:
        flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        pages = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise MemoryError(f"no memory of {size} bytes: {error}") from error
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def tensor_at(memory: memoryview, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over memory from byte `start`, a multiple of the dtype's width, without a copy.

    Its storage covers only its own bytes, so it saves, moves and shares like any other tensor. It keeps `memory` alive.
    """
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(dtype).view(shape)
