"""Runs an iterator in a thread, a few items ahead, and ends the thread when the reader closes or drops it.

The hand-over:

1. The thread puts items into a `_Buffer`, and waits while the buffer is full.
2. The reader takes them out, and waits while the buffer is empty. At the end it gets None, or the producer's error.
3. A reader that ends early calls `stop`, which wakes the thread, and joins it. The producer sees ``is_abandoned``, or
   ends at its next item.
4. In a fork there is no thread, so the reader's clean-up does nothing there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Generic, Protocol, TypeVar

from smddp.threads import Worker

Item = TypeVar("Item")
Produced = TypeVar("Produced", covariant=True)


class Producer(Protocol[Produced]):
    """An iterator with `close`, such as a generator."""

    def __iter__(self) -> Iterator[Produced]: ...
    def close(self) -> None:
        """Release open resources."""


def prefetch(produce: Callable[[Callable[[], bool]], Producer[Item]], *, ahead: int) -> Iterator[Item]:
    """Yield the items of a producer that runs in its own thread, at most ``ahead`` items ahead of the reader.

    ``produce`` gets a function that returns True once the reader ended; from then on its items and errors are dropped.
    An error of the producer is raised after all earlier items. The thread starts at the first `next`, because a
    DataLoader forks its workers before that.
    """
    buffer: _Buffer[Item] = _Buffer(ahead)
    worker = Worker(partial(_fill, buffer, produce), "smddp shard reader")
    process = os.getpid()
    try:
        worker.start()
        while (item := buffer.next_item()) is not None:
            yield item[0]
    finally:
        if os.getpid() == process:  # a fork has no thread, and its copy of the lock may stay locked for ever
            buffer.stop()
            if not worker.is_current:  # the garbage collector may run this in any thread
                worker.give_up()
                worker.wait()


class _Buffer(Generic[Item]):
    def __init__(self, size: int) -> None:
        self.is_stopped = False
        self._size = size
        self._items: deque[tuple[Item]] = deque()
        self._is_at_end = False
        self._error: BaseException | None = None
        # Guards all above. Bound: until `stop`, at most `size` items wait. Order: `finish` comes after the last `put`,
        # so a producer's error is raised after all its items. Waits have no timeout: `next_item` or `stop` ends a
        # wait in `put`; `put` or `finish`, which `_fill` always calls, ends a wait in `next_item`.
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Add an item, after waiting for room."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_stopped or len(self._items) < self._size)
            self._items.append((item,))
            self._changed.notify_all()

    def finish(self, error: BaseException | None) -> None:
        """Mark the end of the items."""
        with self._changed:
            self._is_at_end, self._error = True, error
            self._changed.notify_all()

    def next_item(self) -> tuple[Item] | None:
        """Wait for the next item, and return it in a tuple. At the end, return None or raise the producer's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_at_end)
            if not self._items:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Drop all items, and accept no more."""
        with self._changed:
            self.is_stopped = True
            self._items.clear()
            self._changed.notify_all()


def _fill(buffer: _Buffer[Item], produce: Callable[[Callable[[], bool]], Producer[Item]]) -> None:
    error: BaseException | None = None
    try:
        with closing(produce(lambda: buffer.is_stopped)) as items:
            for item in items:
                buffer.put(item)
                if buffer.is_stopped:
                    break
    except BaseException as raised:
        error = raised
    finally:
        buffer.finish(error)
