"""Threads that fetch parts of objects before they are read, with one bounded memory for all open streams.

Each stream always has one part; beyond that the memory goes to whoever waits, then to whoever has the least. So one
stream alone uses all connections, and fifty at a time use one each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from smddp.errors import DataError
from smddp.storage.s3_bucket import Version
from smddp.storage.s3_download import Downloads
from smddp.storage.s3_retries import Cancelled

_LONGEST_END = 60.0  # seconds
_GLANCE = 1.0  # seconds between two looks of a thread without work


@dataclass(kw_only=True, slots=True, eq=False)
class _Part:
    """A piece of an object, fetched or under way."""

    buffer: bytearray
    memory: memoryview
    """As much of the buffer as the part has bytes."""
    is_done: bool = False
    arrived: int = 0
    """Bytes that are there to be read."""
    read: int = 0
    """Bytes that the reader has taken."""
    error: BaseException | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class StreamState:
    """How far a stream has come."""

    key: str
    position: int
    """The next byte to ask for."""
    stop: int | None
    """Where it ends; None: at the object's end, wherever that is."""
    version: Version | None
    """Unknown until S3 has answered once, if nobody listed the object."""
    parts: deque[_Part] = field(default_factory=deque)
    """In their order: the first is read from."""
    is_waited_for: bool = False
    is_closed: bool = False

    @property
    def end(self) -> int | None:
        """Where it ends, as far as one knows."""
        if self.version is None:
            return self.stop
        return self.version.size if self.stop is None else min(self.stop, self.version.size)

    @property
    def held(self) -> int:
        """Bytes of memory that it has."""
        return sum(len(part.memory) for part in self.parts)


class Prefetcher:
    """The open streams of one process, and the threads that fetch for them as long as there are any."""

    def __init__(self, downloads: Downloads, *, connections: int, memory: int, part_size: int) -> None:
        """Begin with no stream and no thread.

        Args:
            downloads: Reads a range.
            connections: Parts that are fetched at a time at most.
            memory: Bytes that parts may have beyond one for each stream.
            part_size: Bytes of a part.
        """
        self._downloads = downloads
        self._connections = connections
        self._memory = memory
        self._part_size = part_size
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        """Readers wait for it."""
        self._wanted = threading.Condition(self._lock)
        """Threads without work wait for it: a part may be fetched, or all streams are closed."""
        self._holder: int | None = None
        self._streams: list[StreamState] = []
        self._threads: list[threading.Thread] = []
        """Those that fetch what is open now: a thread that ends has left the list, by itself or through stop()."""
        self._idle: set[threading.Thread] = set()
        """Those that wait for work. Invariant: each is in `_threads`; a call for work that finds one starts no other,
        so one that only ends must not be among them."""
        self._spare: list[bytearray] = []
        """Buffers to use again: fresh memory costs more than what is read into it."""

    def start(self, key: str, position: int, stop: int | None, version: Version | None) -> StreamState:
        """Begin to fetch an object from a position on.

        Raises:
            DataError: No thread can be started.
        """
        stream = StreamState(key=key, position=position, stop=stop, version=version)
        with self._locked():
            self._streams.append(stream)
            try:
                self._call_for_work()
            except RuntimeError as error:
                self._streams.remove(stream)
                raise DataError(f"no thread can be started that reads {key}: {error}; raise the limit") from error
        return stream

    def read_into(self, stream: StreamState, memory: memoryview) -> int:
        """Fill memory with the next bytes; waits for the first of them. 0 at the end.

        Raises:
            DataError: The object is missing, was replaced, or S3 does not give it.
            ValueError: The stream was closed by another thread.
        """
        with self._locked():
            part = self._next_part(stream)
        if part is None:
            return 0
        count = min(len(memory), part.arrived - part.read)
        memory[:count] = part.memory[part.read : part.read + count]
        part.read += count
        if part.is_done and part.error is None and part.read == len(part.memory):
            with self._locked():
                self._drop_first(stream)
        return count

    def stop(self, stream: StreamState) -> None:
        """Fetch no more for a stream. With the last stream the threads end, before this returns.

        A thread that waits for S3's answer ends when that comes, or the client's timeout.
        """
        if self._holder == threading.get_ident():
            # The garbage collector closes a stream that was forgotten, in the midst of one of these methods. The
            # threads see it when they look the next time, and end by themselves.
            stream.is_closed = True
            return
        with self._locked():
            stream.is_closed = True  # under the lock: no thread ends by itself, unjoined, before it is taken below
            self._forget_closed()
            ending = []
            if not self._streams:
                ending, self._threads, self._spare = self._threads, [], []
                self._idle.clear()
            self._wanted.notify_all()
            self._arrived.notify_all()
        for thread in ending:
            if thread is not threading.current_thread():
                thread.join(_LONGEST_END)

    def _next_part(self, stream: StreamState) -> _Part | None:
        """Wait for the part that is to be read next; None at the end."""
        stream.is_waited_for = True
        try:
            while not stream.is_closed:
                end = stream.end
                if stream.parts:
                    part = stream.parts[0]
                    if part.read < part.arrived:
                        return part
                    if part.error is not None:
                        raise part.error
                    if part.is_done:
                        self._drop_first(stream)
                        continue
                elif end is not None and stream.position >= end:
                    return None
                self._wait(self._arrived)
            raise ValueError("read of a closed stream")
        finally:
            stream.is_waited_for = False

    def _work(self) -> None:
        this = threading.current_thread()
        with self._locked():
            while this in self._threads:
                self._forget_closed()
                if not self._streams:
                    self._threads.remove(this)  # the others look for themselves, or find work again before that
                    self._spare = []
                    return
                claimed = self._claim_part()
                if claimed is None:
                    self._idle.add(this)
                    self._wait(self._wanted, _GLANCE)
                    self._idle.discard(this)
                    continue
                self._call_for_work()
                stream, start, part = claimed
                with self._unlocked():
                    size = self._fetch(stream, start, part)
                part.memory = part.memory[:size]
                part.is_done = True
                if stream.version is None:
                    stream.position = stream.stop = start  # an empty object, or one that ends before
                self._arrived.notify_all()
                del stream, part, claimed  # a thread that waits holds no memory

    def _fetch(self, stream: StreamState, start: int, part: _Part) -> int:
        def answered(version: Version) -> None:
            if stream.version is None:
                with self._locked():
                    stream.version = version
                    self._call_for_work()

        def arrived(count: int) -> None:
            part.arrived = count
            if stream.is_waited_for:
                with self._locked():
                    self._arrived.notify_all()

        try:
            return self._downloads.fill(
                stream.key,
                start,
                part.memory,
                stream.version,
                answered=answered,
                arrived=arrived,
                cancelled=lambda: stream.is_closed,
            )
        except Cancelled:
            return 0
        except BaseException as error:  # raised to the reader, after what came before
            part.error = error
            return part.arrived

    def _claim_part(self) -> tuple[StreamState, int, _Part] | None:
        """Decide which part is fetched next."""
        stream = self._choose()
        if stream is None:
            return None
        start = stream.position
        size = self._size_of_next(stream)
        try:
            buffer = self._spare.pop() if self._spare else bytearray(self._part_size)
        except MemoryError:
            error = DataError(
                f"there is no memory for {self._part_size} bytes of {stream.key}: give S3Source a smaller part_size, "
                "or read fewer objects at a time (the lanes of ShardedDataset)"
            )
            stream.parts.append(_Part(buffer=bytearray(), memory=memoryview(b""), is_done=True, error=error))
            self._arrived.notify_all()
            return None
        part = _Part(buffer=buffer, memory=memoryview(buffer)[:size])
        stream.parts.append(part)
        stream.position += size
        return stream, start, part

    def _drop_first(self, stream: StreamState) -> None:
        """Use its buffer again: it has been read."""
        self._spare.append(stream.parts.popleft().buffer)
        self._call_for_work()

    def _call_for_work(self) -> None:
        """Wake a thread, or start one, if there is a part to fetch; the thread then calls for the next one."""
        if self._choose() is None:
            return
        if self._idle:
            self._wanted.notify()
        elif len(self._threads) < self._connections:
            self._start_thread()

    def _choose(self) -> StreamState | None:
        held = {stream: stream.held for stream in self._streams}
        free = self._memory - sum(held.values())
        eligible = [
            stream
            for stream in self._streams
            if (size := self._size_of_next(stream)) > 0 and (not stream.parts or size <= free)
        ]
        return min(eligible, key=lambda stream: (not stream.is_waited_for, held[stream]), default=None)

    def _size_of_next(self, stream: StreamState) -> int:
        if stream.version is None and stream.parts:
            return 0  # the first answer tells how far the object goes, and which one it is
        if stream.is_closed or any(part.error for part in stream.parts):
            return 0
        end = stream.end
        return self._part_size if end is None else min(self._part_size, end - stream.position)

    def _forget_closed(self) -> None:
        self._streams = [stream for stream in self._streams if not stream.is_closed]

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="smddp-stream", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the machine has no more, or Python ends: the others do it
            self._threads.remove(thread)
            if not self._threads:
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._holder = None
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._holder = threading.get_ident()

    def _wait(self, condition: threading.Condition, seconds: float | None = None) -> None:
        self._holder = None
        condition.wait(seconds)
        self._holder = threading.get_ident()
