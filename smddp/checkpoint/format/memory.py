"""Memory for hundreds of megabytes at a time, in huge pages.

Memory that a process has not touched yet is handed over by the kernel page by page, and zeroed. In pages of 4 KiB that
takes several times as long as reading a checkpoint into it; in pages of 2 MiB it hardly shows.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

_HUGE_PAGE = 2 * 2**20  # bytes


def allocate(size: int, *, shared: bool = False) -> memoryview:
    """Take memory, all zeros; it goes back when nothing refers to it any more.

    Args:
        size: Bytes, at least one.
        shared: Whether a fork and this process go on having it together. Otherwise the fork makes every page of it
            copy-on-write, and to write to it again takes as much memory once more, and many times as long.

    Raises:
        MemoryError: There is not so much.
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
    """Return the tensor whose values lie at a place in memory, not copied.

    Its storage is that place and no more, so that it saves, moves and shares like any other tensor.

    Args:
        memory: It stays as long as the tensor does.
        start: In bytes; a multiple of the dtype's width.
        dtype: Of the values.
        shape: Of the tensor.
    """
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(dtype).view(shape)
