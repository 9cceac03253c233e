"""Copying the output of several processes into one stream without tearing their lines apart.

Unbuffered Python writes a line and its end one after the other: two ranks that print at once share a line, and no
metric can be read from it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress

STDOUT, STDERR = 1, 2

OUTPUT_SECONDS = 1.0
"""How long the rest of its output is waited for after a process ended: a daemon of its may hold it open."""

PARTIAL_SECONDS = 0.2
"""How long the start of a line is held back: a prompt, or a progress bar without an end."""

MOST_KEPT = 256 << 10
"""Bytes of a line that are held back at most, as many as CloudWatch takes for one: a longer one is torn."""


def copy_lines(source: int, target: int, heed: Callable[[bytes], None] | None = None) -> None:
    """Copy from one file descriptor to another until the end, each line by one write as soon as it is whole.

    Args:
        source: Read from it.
        target: Write to it.
        heed: Called with what is written: whole lines, or a part of one that is too long, or was held back long enough.
    """
    poller = select.poll()
    poller.register(source, select.POLLIN)
    kept = b""
    while True:
        if kept and not poller.poll(PARTIAL_SECONDS * 1000):
            _write_lines(target, kept, heed)
            kept = b""
        chunk = os.read(source, 65536)
        if not chunk:
            break
        kept += chunk
        end = max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1
        if not end and len(kept) >= MOST_KEPT:
            end = len(kept)
        if end:
            _write_lines(target, kept[:end], heed)
            kept = kept[end:]
    _write_lines(target, kept, heed)


def _write_lines(target: int, data: bytes, heed: Callable[[bytes], None] | None) -> None:
    """Write in pieces that end with a line and that the kernel does not mix with another process's."""
    if heed is not None:
        heed(data)
    while data:
        end = len(data) if len(data) <= select.PIPE_BUF else data.rfind(b"\n", 0, select.PIPE_BUF) + 1
        piece, data = data[: end or select.PIPE_BUF], data[end or select.PIPE_BUF :]
        write_all(target, piece)


def write_all(target: int, data: bytes) -> None:
    """Write all of it; if nobody reads any more, it is lost and that is all."""
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
