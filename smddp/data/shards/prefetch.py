"""Runs an iterator in a thread, a few items ahead; nothing of it is left when the reader closes or forgets it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Produced = TypeVar("Produced", covariant=True)


class Producer(Protocol[Produced]):
    """An iterator that can be closed: a generator."""

    def __iter__(self) -> Iterator[Produced]: ...
    def close(self) -> None:
        """Close what it has open."""


def prefetch(produce: Callable[[Callable[[], bool]], Producer[Item]], *, ahead: int) -> Iterator[Item]:
    """Give the items of a producer that runs in a thread of its own.

    The thread starts with the first item that is asked for: a DataLoader forks its workers before.

    Args:
        produce: Makes the producer. It is told how to ask whether it is still wanted; if not, what it gives, and what
            it raises, is dropped.
        ahead: How many items it may be ahead.

    Raises:
        BaseException: What the producer raises, in its place among the items.
    """
    buffer: _Buffer[Item] = _Buffer(ahead)
    thread = threading.Thread(target=_fill, args=(buffer, produce), name="smddp shard reader", daemon=True)
    process = os.getpid()
    thread.start()
    try:
        while (item := buffer.next_item()) is not None:
            yield item[0]
    finally:
        if os.getpid() == process:  # in a fork there is no thread, and its locks may be held forever
            buffer.stop()
            if threading.current_thread() is not thread:  # the garbage collector runs in any
                thread.join()


class _Buffer(Generic[Item]):
    def __init__(self, size: int) -> None:
        self.is_stopped = False
        self._size = size
        self._items: deque[tuple[Item]] = deque()
        self._is_at_end = False
        self._error: BaseException | None = None
        # Guards all above. Bound: until `stop`, at most `size` items wait. Order: `finish` comes after the last `put`,
        # so what the producer raises is raised behind all its items.
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Add an item, once there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_stopped or len(self._items) < self._size)
            self._items.append((item,))
            self._changed.notify_all()

    def finish(self, error: BaseException | None) -> None:
        """Say that no item follows."""
        with self._changed:
            self._is_at_end, self._error = True, error
            self._changed.notify_all()

    def next_item(self) -> tuple[Item] | None:
        """Give the next item in a tuple, once it is there; None at the end."""
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
        """Say that no item is wanted any more."""
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
