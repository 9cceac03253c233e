"""Threads that fetch parts of objects before they are read, within one memory bound for all open streams.

Each stream always has one part. Beyond that, memory goes to streams with a waiting reader first, then to the stream
with the least. So one stream alone uses all connections, and fifty at a time use one each.
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
from smddp.storage.s3_errors import Cancelled
from smddp.threads import NoThreadError, start_thread

_LONGEST_END = 60.0  # seconds
_GLANCE = 1.0  # seconds between two checks of an idle thread


@dataclass(kw_only=True, slots=True, eq=False)
class _Part:
    """A piece of an object, fetched or being fetched."""

    buffer: bytearray
    memory: memoryview
    """The part's bytes within the buffer."""
    is_done: bool = False
    arrived: int = 0
    """Bytes ready to be read. Written by the fetching thread alone."""
    read: int = 0
    """Bytes that the reader took. Written by the reader alone."""
    error: BaseException | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class StreamState:
    """The progress of one stream."""

    key: str
    position: int
    """The next byte to fetch."""
    stop: int | None
    """The byte at which it ends; None for the object's end."""
    version: Version | None
    """None until S3's first answer, unless the object was listed."""
    parts: deque[_Part] = field(default_factory=deque)
    """In order; the reader reads the first."""
    is_waited_for: bool = False
    is_closed: bool = False

    @property
    def end(self) -> int | None:
        """The byte at which it ends, or None if that is not known yet."""
        if self.version is None:
            return self.stop
        return self.version.size if self.stop is None else min(self.stop, self.version.size)

    @property
    def held(self) -> int:
        """Bytes of memory of its parts."""
        return sum(len(part.memory) for part in self.parts)


class Prefetcher:
    """The open streams of one process, and the threads that fetch for them while any stream is open."""

    def __init__(self, downloads: Downloads, *, connections: int, memory: int, part_size: int) -> None:
        """Begin with no stream and no thread.

        At most ``connections`` parts are fetched at a time; ``part_size`` is the bytes of a part, and ``memory`` the
        bytes of all parts beyond one for each stream.
        """
        self._downloads = downloads
        self._connections = connections
        self._memory = memory
        self._part_size = part_size
        # Guards everything below, and the streams; not `_Part.arrived` and `_Part.read`, which have one writer each.
        # It is the only lock here, and is released during a download (`_unlocked`).
        #
        # 1. Bounds: a reader waits for its part, which Downloads fills or fails within its patience; an idle thread
        #    wakes every _GLANCE; `stop` joins each thread for at most _LONGEST_END.
        # 2. No lost wake-up: `arrived` writes `_Part.arrived` and then reads `is_waited_for`, a reader writes
        #    `is_waited_for` and then reads `_Part.arrived`. So one of them sees the other, without the lock.
        # 3. The garbage collector may call `stop` in a thread that owns the lock; `_holder` tells. An RLock, because
        #    it may also do so right after the lock is taken and before `_holder` is set.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        """Readers wait for it."""
        self._wanted = threading.Condition(self._lock)
        """Idle threads wait for it: a part can be fetched, or all streams are closed."""
        self._holder: int | None = None
        self._streams: list[StreamState] = []
        self._threads: list[threading.Thread] = []
        """The running threads. A thread leaves the list before it ends, by itself or through `stop`."""
        self._idle: set[threading.Thread] = set()
        """The threads that wait for work, all of them in `_threads`. `_call_for_work` wakes one of them instead of
        starting a thread, so a thread that is about to end must not be here."""
        self._spare: list[bytearray] = []
        """Buffers to reuse: allocating fresh memory costs more than reading into it."""

    def start(self, key: str, position: int, stop: int | None, version: Version | None) -> StreamState:
        """Begin to fetch an object from a position on; raise DataError if no thread can be started."""
        stream = StreamState(key=key, position=position, stop=stop, version=version)
        with self._locked():
            self._streams.append(stream)
            try:
                self._call_for_work()
            except NoThreadError as error:
                self._streams.remove(stream)
                raise DataError(
                    f"can't start a thread to read {key}: {error}; raise the limit of threads (ulimit -u, or a "
                    "container's limit of PIDs)"
                ) from error
        return stream

    def read_into(self, stream: StreamState, memory: memoryview) -> int:
        """Fill memory with the next bytes, after waiting for the first of them; return their number, 0 at the end.

        Raise DataError if the object is missing, was replaced or can't be read, ValueError if another thread closed the
        stream.
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
        """Stop fetching for a stream. After the last stream, end all threads, and join each for at most 60 s.

        A thread that waits for S3's answer ends with that answer, or with the client's timeout.
        """
        if self._holder == threading.get_ident():
            # The garbage collector closes an unreferenced stream inside one of these methods. The threads notice at
            # their next check, and end by themselves.
            stream.is_closed = True
            return
        with self._locked():
            stream.is_closed = True  # under the lock: otherwise threads could end by themselves, and not be joined
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
        """Wait for the next part to read; return None at the end."""
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
                    self._threads.remove(this)  # the other threads check for themselves, or get new work before that
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
                    stream.position = stream.stop = start  # the object is empty, or ends before this part
                self._arrived.notify_all()
                del stream, part, claimed  # an idle thread keeps no memory alive

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
        except BaseException as error:  # the reader raises it after the bytes before it
            part.error = error
            return part.arrived

    def _claim_part(self) -> tuple[StreamState, int, _Part] | None:
        """Choose the next part to fetch, and add it to its stream; None if no part is left to fetch."""
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
        """Remove a stream's first part, which has been read, and reuse its buffer."""
        self._spare.append(stream.parts.popleft().buffer)
        self._call_for_work()

    def _call_for_work(self) -> None:
        """Wake or start one thread if a part can be fetched. That thread does the same after it claimed its part."""
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
            return 0  # the first answer tells the object's size and version
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
            start_thread(thread)
        except NoThreadError:  # the other threads do the work
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
