"""Copy the output of several processes to one stream, line by line.

Unbuffered Python writes a line and its newline separately. So two ranks that print at once would share a line, and no
metric could be parsed from it. Notes on the copy:
  1. A target that is not a terminal receives whole lines: the start of a line waits for its newline.
  2. After `HELD_SECONDS` the start of a line is written with a newline, so that the next writer begins a new line.
  3. But a line is never ended within a number, whose first digits alone would be another number.
  4. A terminal receives the start of a line after `PARTIAL_SECONDS`: it may be a prompt or a progress bar.
  5. A line over `MOST_KEPT` bytes is split.
  6. On a terminal, a process gets a pseudoterminal of the same size for both streams, so that it draws as before and
     its writes keep their order. What it writes is copied at once: it may be the echo of a key.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import struct
import termios
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, BinaryIO, Protocol

from smddp.process.unread_bytes import has_unread

STDOUT, STDERR = 1, 2

OUTPUT_SECONDS = 1.0
"""Seconds to wait for the end of the output after a process ended: a daemon may keep its pipe open."""

BEHIND_SECONDS = 5.0
"""Further seconds to wait while bytes are unread or not yet written: the thread may have got no core. Who waits for the
process learns of its end only then."""

PARTIAL_SECONDS = 0.2
"""Seconds before a terminal receives the start of a line: a prompt, or a progress bar without newline."""

HELD_SECONDS = 5.0
"""Seconds that the start of a line waits for its newline, for any target but a terminal."""

_IN_NUMBER = re.compile(rb"(?:[=:]\s*-?|\d[.eE+-]*)$")
"""Matches the start of a line that may end within a number, as after the flush of a full buffer."""

_OVERWRITTEN = re.compile(rb"[^\n]*\r(?!\n)")

_NUMBER_BYTES = 64

MOST_KEPT = 256 << 10
"""Bytes of a line that are held back at most, CloudWatch's limit for an event; a longer line is split."""

TAIL_BYTES = 64 << 10

_LOOK_SECONDS = 0.02

# One lock for each target file or pipe, by device and inode: standard output and standard error may be the same one. A
# thread owns it while it writes whole lines, and takes no other lock meanwhile. The wait has no bound: a write lasts
# until the target's reader has read. For other processes, only the kernel keeps lines up to PIPE_BUF bytes whole.
_writing: defaultdict[tuple[int, int] | None, threading.Lock] = defaultdict(threading.Lock)


class Piped(Protocol):
    """A process whose output can be read."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe of its standard output; None if it inherits ours."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """The pipe of its standard error."""


class Tail:
    """The last bytes of an output."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def keep(self, lines: bytes) -> None:
        """Add lines; only the last `TAIL_BYTES` are kept."""
        self._kept.extend(lines)
        del self._kept[:-TAIL_BYTES]

    @property
    def text(self) -> str:
        """The kept text, without what a carriage return had overwritten, such as a progress bar."""
        return _OVERWRITTEN.sub(b"", self._kept).decode(errors="replace")


class _LineCopy:
    """Copies one stream to a file descriptor, each line once it is complete; `heed` receives the written bytes.

    From a pseudoterminal, which always has the target's size, it copies all at once.
    """

    def __init__(
        self, target: int, heed: Callable[[bytes], None] | None = None, *, pseudoterminal: int | None = None
    ) -> None:
        self._target = target
        self._heed = heed
        self._pseudoterminal = pseudoterminal
        self._is_watched = os.isatty(target)
        self._kept = b""
        self._last = b"\n"
        self._since = 0.0

    @property
    def keeps(self) -> bool:
        """Whether the start of a line waits for its newline."""
        return bool(self._kept)

    def take(self, chunk: bytes) -> None:
        """Add bytes from the stream, and write the complete lines."""
        self._since = time.monotonic()
        self._kept += chunk
        end = max(self._kept.rfind(b"\n"), self._kept.rfind(b"\r")) + 1
        if self._pseudoterminal is not None:
            _copy_size(self._target, self._pseudoterminal)
        if self._pseudoterminal is not None or (not end and len(self._kept) >= MOST_KEPT):
            end = len(self._kept)
        if end:
            self._write(end)

    def look(self, *, is_left: bool) -> None:
        """Write the start of a line if it has waited long enough, or at once if the stream is abandoned (`is_left`)."""
        waited = time.monotonic() - self._since
        if not self._kept:
            return
        if self._is_watched:
            if waited > PARTIAL_SECONDS:
                self._write(len(self._kept))
        elif is_left or (waited > HELD_SECONDS and not _IN_NUMBER.search(self._kept[-_NUMBER_BYTES:])):
            self.end()

    def end(self) -> None:
        """Write the rest, with a newline if the target is not a terminal."""
        if not self._is_watched and (self._kept or self._last) != b"\n":
            self._kept += b"\n"
        self._write(len(self._kept))

    def _write(self, end: int) -> None:
        if end:
            _write_lines(self._target, self._kept[:end], self._heed)
            self._kept, self._last = self._kept[end:], self._kept[end - 1 : end]


def copy_lines(source: int, target: int, heed: Callable[[bytes], None] | None = None) -> None:
    """Copy one file descriptor to another until the end, each line as soon as it is complete.

    `heed` receives the written bytes: whole lines, or a part of a line that is too long or shown on a terminal.
    """
    _copy({source: _LineCopy(target, heed)})


def _copy(
    copies: Mapping[int, _LineCopy], is_left: Callable[[], bool] = lambda: False, idle: threading.Event | None = None
) -> None:
    """Copy several streams until all have ended, in one thread, which keeps the order of lines as far as possible.

    `idle` is set while each byte that was read is written, or kept as the start of a line.
    """
    idle = idle or threading.Event()
    poller = select.poll()
    for source in copies:
        poller.register(source, select.POLLIN)
    open_copies = dict(copies)
    while open_copies:
        keeps = any(copy.keeps for copy in open_copies.values())
        idle.set()
        ready = poller.poll(PARTIAL_SECONDS * 1000 if keeps else None)
        idle.clear()
        for source, _ in ready:
            if chunk := _read(source):
                open_copies[source].take(chunk)
            else:
                poller.unregister(source)
                open_copies.pop(source).end()
        for copy in open_copies.values():
            copy.look(is_left=is_left())


class OutputCopy:
    """Copies a process's piped streams to this process's, in a thread; `heed` receives its standard error."""

    def __init__(self, process: Piped, heed: Callable[[bytes], None]) -> None:
        self._left = threading.Event()
        self._idle = threading.Event()
        copies: dict[IO[bytes], _LineCopy] = {}
        for source, target, heeded in ((process.stdout, STDOUT, None), (process.stderr, STDERR, heed)):
            if source is not None:
                terminal = source.fileno() if os.isatty(source.fileno()) else None
                copies[source] = _LineCopy(target, heeded, pseudoterminal=terminal)

        def copy_all() -> None:  # the closure refers to the streams, which keeps them open
            _copy({source.fileno(): copy for source, copy in copies.items()}, self._left.is_set, self._idle)

        self._copies = copies
        self._thread = threading.Thread(target=copy_all, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all is copied that the ended process wrote, also if a daemon keeps the pipe open."""
        # 1. Most pipes end with their process, and the thread ends with them.
        # 2. If a pipe stays open, all is copied once no byte is unread and the thread is idle. The order matters: the
        #    thread is not idle from before it reads until it has written.
        # 3. Then the start of a line is written, too: its newline will not come.
        # 4. `BEHIND_SECONDS` bounds 2 and 3: a daemon may print without a pause, and the target's reader may not read.
        self._thread.join(OUTPUT_SECONDS)
        deadline = time.monotonic() + BEHIND_SECONDS
        self._wait_while(lambda: any(map(has_unread, self._copies)) or not self._idle.is_set(), deadline)
        self._left.set()
        self._wait_while(lambda: any(copy.keeps for copy in self._copies.values()), deadline)

    def _wait_while(self, is_behind: Callable[[], bool], deadline: float) -> None:
        while self._thread.is_alive() and is_behind() and time.monotonic() < deadline:
            self._thread.join(_LOOK_SECONDS)


class ChildStreams:
    """The standard output and standard error of a new process: its ends, to pass to it, and ours, to copy from."""

    def __init__(self, *, pseudoterminal: bool = True) -> None:
        """Open a pseudoterminal if both streams of this process are a terminal, else a pipe for each that is none.

        Standard output is inherited if it alone is a terminal, both streams if no pseudoterminal is left. Without
        `pseudoterminal`, standard error is always a pipe: a job's log gets no live line, even if a terminal carries it.
        """
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        if pseudoterminal and os.isatty(STDOUT) and os.isatty(STDERR):
            try:
                ours, theirs = os.openpty()
            except OSError:
                self.ends = [os.dup(STDOUT), os.dup(STDERR)]
                return
            attributes = termios.tcgetattr(STDERR)
            attributes[1] &= ~termios.OPOST  # our terminal does it
            termios.tcsetattr(theirs, termios.TCSANOW, attributes)
            _copy_size(STDERR, ours)
            self.ends = [theirs, os.dup(theirs)]
            self.stderr = os.fdopen(ours, "rb", buffering=0)
            return
        if os.isatty(STDOUT):
            out = os.dup(STDOUT)
        else:
            reading, out = os.pipe()
            self.stdout = os.fdopen(reading, "rb")
        reading, error = os.pipe()
        self.stderr = os.fdopen(reading, "rb")
        self.ends = [out, error]

    def close_ends(self) -> None:
        """Close the process's ends here, once it has them."""
        for end in self.ends:
            os.close(end)

    def close(self) -> None:
        """Close our ends, because there is no process."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def _copy_size(terminal: int, pseudoterminal: int) -> None:
    """Give a pseudoterminal the size of a terminal."""
    with suppress(OSError):  # it has none, or is gone
        columns, rows = os.get_terminal_size(terminal)
        fcntl.ioctl(pseudoterminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read(source: int) -> bytes:
    """Return the next bytes of a stream; none at its end, which a pseudoterminal tells by an error."""
    try:
        return os.read(source, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def merge_lines(sources: Sequence[IO[bytes]]) -> BinaryIO:
    """Return a pipe with the whole lines of several pipes, which are closed once all have ended."""
    reading, writing = os.pipe()

    def copy_all() -> None:
        with ExitStack() as opened:
            opened.callback(os.close, writing)
            _copy({opened.enter_context(source).fileno(): _LineCopy(writing) for source in sources})

    threading.Thread(target=copy_all, daemon=True).start()
    return os.fdopen(reading, "rb", buffering=0)


def _write_lines(target: int, data: bytes, heed: Callable[[bytes], None] | None) -> None:
    """Write whole lines in pieces up to PIPE_BUF, which the kernel does not mix with other processes' writes."""
    if heed is not None:
        heed(data)
    with _writing[_identity(target)]:
        while data:
            end = len(data) if len(data) <= select.PIPE_BUF else data.rfind(b"\n", 0, select.PIPE_BUF) + 1
            piece, data = data[: end or select.PIPE_BUF], data[end or select.PIPE_BUF :]
            write_all(target, piece)


def _identity(target: int) -> tuple[int, int] | None:
    """Return the device and inode of a file or pipe; None if it is closed."""
    try:
        status = os.fstat(target)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def write_all(target: int, data: bytes) -> None:
    """Write all bytes; drop them if the reader is gone."""
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
