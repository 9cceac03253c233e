"""Memory copied by several threads that share the work as it comes.

Torch copies a tensor with several threads too, but gives each a fixed share of every tensor and waits for all of them:
where other processes want the cores as well, loaders of data for instance, it waits for the slowest each time. Here
whoever is free takes the next piece, and there is one wait at the end, for one piece.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import NamedTuple

import torch

_PIECE = 8 * 2**20
"""Bytes: what a thread takes at a time. Milliseconds of work."""

_BYTES_A_THREAD = 32 * 2**20
"""No thread is begun for less."""

_MOST_THREADS = 8
"""More than a few do not copy faster: the memory is busy."""


class Span(NamedTuple):
    """Bytes to be copied, by their addresses. Whoever gives it sees to it that the memory stays."""

    target: int
    source: int
    size: int


def copy_spans(spans: Iterable[Span]) -> None:
    """Copy them all, with as many threads as torch would use, at most; the other threads of Python run meanwhile."""
    pieces: list[tuple[int, int, int]] = []
    total = 0
    for target, source, size in spans:
        total += size
        if size <= _PIECE:
            pieces.append((target, source, size))
        else:
            pieces += [(target + at, source + at, min(_PIECE, size - at)) for at in range(0, size, _PIECE)]
    threads = min(torch.get_num_threads(), _MOST_THREADS, total // _BYTES_A_THREAD)
    left = iter(pieces)  # of a list: two threads never get the same from it

    def work() -> None:
        for target, source, size in left:
            ctypes.memmove(target, source, size)

    helpers = [threading.Thread(target=work, name="smddp-checkpoint-copy", daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
