"""Copies memory with several threads that take pieces from one queue.

PyTorch also copies with several threads, but gives each a fixed share of every tensor and waits for all: when other
processes use the cores, such as DataLoader workers, each tensor waits for the slowest thread. Here each free thread
takes the next piece, and the only wait is at the end, for one piece per thread.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import NamedTuple

import torch

_PIECE = 8 * 2**20
"""Bytes that a thread takes at a time: milliseconds of work."""

_BYTES_A_THREAD = 32 * 2**20
"""Bytes per thread, at least: a smaller copy starts fewer threads."""

_MOST_THREADS = 8
"""A few threads already use all the memory bandwidth."""


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

    helpers = [threading.Thread(target=work, name="smddp-checkpoint-copy", daemon=True) for _ in range(threads - 1)]
    try:
        for helper in helpers:
            helper.start()
        work()
    finally:  # also after Ctrl-C: the caller may free the memories once this returns
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
