"""Copying the output of several processes into one stream without tearing their lines apart.

Unbuffered Python writes a line and its end one after the other: two ranks that print at once share a line, and no
metric can be read from it. What is no terminal gets whole lines only: the start of a line waits for its end. If that
does not come, the line is ended, so that whoever writes next begins a line of its own; but not within a number, whose
first digits alone would be another one.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, BinaryIO

STDOUT, STDERR = 1, 2

OUTPUT_SECONDS = 1.0
"""How long the rest of its output is waited for after a process ended: a daemon that it started may hold it open."""

PARTIAL_SECONDS = 0.2
"""How long a terminal waits for the start of a line: a prompt, or a progress bar without an end."""

HELD_SECONDS = 5.0
"""How long anything else waits for the end of a line."""

_IN_NUMBER = re.compile(rb"(?:[=:]\s*-?|\d[.eE+-]*)$")
"""How the start of a line ends that may stop within a number, as a program's buffer does that was full."""

_NUMBER_BYTES = 64

MOST_KEPT = 256 << 10
"""Bytes of a line that are held back at most, as many as CloudWatch takes for one: a longer one is torn."""

TAIL_BYTES = 64 << 10

# Guards each file or pipe that lines are written to, from the first byte of a line to its last: who writes to standard
# output and who writes to standard error may write to the same one. Writers of other processes are kept out by the
# kernel alone, for lines up to PIPE_BUF.
_writing: defaultdict[tuple[int, int] | None, threading.Lock] = defaultdict(threading.Lock)


class Tail:
    """The end of what was printed."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def keep(self, lines: bytes) -> None:
        """Add lines; of all of them, the last `TAIL_BYTES` stay."""
        self._kept.extend(lines)
        del self._kept[:-TAIL_BYTES]

    @property
    def text(self) -> str:
        """What has stayed."""
        return bytes(self._kept).decode(errors="replace")


class _LineCopy:
    """Copies one stream to a file descriptor, each line by one write as soon as it is whole.

    Args:
        target: Written to.
        heed: Called with what is written.
    """

    def __init__(self, target: int, heed: Callable[[bytes], None] | None = None) -> None:
        self._target = target
        self._heed = heed
        self._is_watched = os.isatty(target)
        self._kept = b""
        self._last = b"\n"
        self._since = 0.0

    @property
    def keeps(self) -> bool:
        """Whether the start of a line waits for its end."""
        return bool(self._kept)

    def take(self, chunk: bytes) -> None:
        """Take what the stream brings."""
        self._since = time.monotonic()
        self._kept += chunk
        end = max(self._kept.rfind(b"\n"), self._kept.rfind(b"\r")) + 1
        if not end and len(self._kept) >= MOST_KEPT:
            end = len(self._kept)
        if end:
            self._write(end)

    def look(self, *, is_left: bool) -> None:
        """Write the start of a line if its end is waited for no more.

        Args:
            is_left: Whether nobody may end it any more.
        """
        waited = time.monotonic() - self._since
        if not self._kept:
            return
        if self._is_watched:
            if waited > PARTIAL_SECONDS:
                self._write(len(self._kept))
        elif is_left or (waited > HELD_SECONDS and not _IN_NUMBER.search(self._kept[-_NUMBER_BYTES:])):
            self.end()

    def end(self) -> None:
        """Write what is left, and end its line; a terminal's user sees where it ends."""
        if not self._is_watched and (self._kept or self._last) != b"\n":
            self._kept += b"\n"
        self._write(len(self._kept))

    def _write(self, end: int) -> None:
        if end:
            _write_lines(self._target, self._kept[:end], self._heed)
            self._kept, self._last = self._kept[end:], self._kept[end - 1 : end]


def copy_lines(source: int, target: int, heed: Callable[[bytes], None] | None = None) -> None:
    """Copy from one file descriptor to another until the end, each line by one write as soon as it is whole.

    Args:
        source: Read from it.
        target: Write to it.
        heed: Called with what is written: whole lines, or a part of one that is too long, or that a terminal shows.
    """
    _copy({source: _LineCopy(target, heed)})


def _copy(copies: Mapping[int, _LineCopy], is_left: Callable[[], bool] = lambda: False) -> None:
    """Copy several streams until all have ended, in one thread: their lines keep their order as well as can be."""
    poller = select.poll()
    for source in copies:
        poller.register(source, select.POLLIN)
    open_copies = dict(copies)
    while open_copies:
        keeps = any(copy.keeps for copy in open_copies.values())
        for source, _ in poller.poll(PARTIAL_SECONDS * 1000 if keeps else None):
            if chunk := os.read(source, 65536):
                open_copies[source].take(chunk)
            else:
                poller.unregister(source)
                open_copies.pop(source).end()
        for copy in open_copies.values():
            copy.look(is_left=is_left())


class OutputCopy:
    """Copies what a process prints to this one's own streams, by a thread that ends with its streams.

    Args:
        process: Its streams that are pipes are copied.
        heed: Called with its standard error, as `copy_lines` has it.
    """

    def __init__(self, process: subprocess.Popen[bytes], heed: Callable[[bytes], None]) -> None:
        self._left = threading.Event()
        streams = ((process.stdout, _LineCopy(STDOUT)), (process.stderr, _LineCopy(STDERR, heed)))
        copies = {source: copy for source, copy in streams if source is not None}

        def copy_all() -> None:  # it has the streams themselves: they stay open for as long as they are read
            _copy({source.fileno(): copy for source, copy in copies.items()}, self._left.is_set)

        self._thread = threading.Thread(target=copy_all, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Return once all that the process printed has passed, or what came soon: a daemon may hold the rest."""
        self._thread.join(OUTPUT_SECONDS)
        self._left.set()
        self._thread.join(2 * PARTIAL_SECONDS)


def merge_lines(sources: Sequence[IO[bytes]]) -> BinaryIO:
    """Return what several pipes bring, each line whole, until all have ended; they are closed then."""
    reading, writing = os.pipe()

    def copy_all() -> None:
        with ExitStack() as opened:
            opened.callback(os.close, writing)
            _copy({opened.enter_context(source).fileno(): _LineCopy(writing) for source in sources})

    threading.Thread(target=copy_all, daemon=True).start()
    return os.fdopen(reading, "rb", buffering=0)


def _write_lines(target: int, data: bytes, heed: Callable[[bytes], None] | None) -> None:
    """Write in pieces that end with a line and that the kernel does not mix with another process's."""
    if heed is not None:
        heed(data)
    with _writing[_identity(target)]:
        while data:
            end = len(data) if len(data) <= select.PIPE_BUF else data.rfind(b"\n", 0, select.PIPE_BUF) + 1
            piece, data = data[: end or select.PIPE_BUF], data[end or select.PIPE_BUF :]
            write_all(target, piece)


def _identity(target: int) -> tuple[int, int] | None:
    """Return what tells one file or pipe from another; None if it is closed."""
    try:
        status = os.fstat(target)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def write_all(target: int, data: bytes) -> None:
    """Write all of it; if nobody reads any more, it is lost and that is all."""
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
