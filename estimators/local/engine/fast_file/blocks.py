"""The blocks of all open files that are in memory or on their way, with one bound: those used last are kept."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, eq=False)
class _Block:
    data: Future[bytes]
    size: int
    readers: int = 0

    @property
    def failed(self) -> bool:
        return self.data.done() and (self.data.cancelled() or self.data.exception() is not None)


class Blocks:
    """Blocks by the file and their number in it, each asked for once while it is there.

    Args:
        limit: Bytes that are kept. More are there only while reads wait for more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[object, int], _Block] = OrderedDict()
        self._files: dict[object, set[int]] = {}

    @property
    def size(self) -> int:
        """Bytes that are there, or on their way."""
        return self._size

    def of(self, file: object) -> frozenset[int]:
        """The numbers of a file's blocks."""
        with self._lock:
            return frozenset(self._files.get(file, ()))

    def room_for_each(self, size: int) -> int:
        """How many blocks of ``size`` bytes every file can have."""
        with self._lock:
            return self._limit // (size * max(1, len(self._files)))

    @contextlib.contextmanager
    def use(
        self, file: object, wanted: range, later: range, fetch: Callable[[int], tuple[int, Future[bytes]]]
    ) -> Iterator[list[Future[bytes]]]:
        """The wanted blocks, none of which goes before the ``with`` block ends.

        Args:
            file: Whose blocks; anything that has an identity.
            wanted: The numbers of the blocks.
            later: The numbers of blocks that are asked for too; not again if they could not be read.
            fetch: Asks for a block: its size, and its bytes when they come.
        """
        with self._lock:
            used = [self._ask(file, number, fetch, again=True) for number in wanted]
            for number in later:
                self._ask(file, number, fetch, again=False)
            for block in used:
                block.readers += 1
            self._trim()
        try:
            yield [block.data for block in used]
        finally:
            with self._lock:
                for block in used:
                    block.readers -= 1
                self._trim()

    def forget(self, file: object) -> None:
        """Drop a file's blocks."""
        with self._lock:
            for number in sorted(self._files.get(file, ())):
                self._drop((file, number))

    def _ask(
        self, file: object, number: int, fetch: Callable[[int], tuple[int, Future[bytes]]], *, again: bool
    ) -> _Block:
        key = file, number
        block = self._blocks.get(key)
        if block is not None and block.failed and again:
            self._drop(key)
            block = None
        if block is None:
            size, data = fetch(number)
            block = self._blocks[key] = _Block(data=data, size=size)
            self._files.setdefault(file, set()).add(number)
            self._size += size
        self._blocks.move_to_end(key)
        return block

    def _trim(self) -> None:
        while self._size > self._limit:
            oldest = next((key for key, block in self._blocks.items() if not block.readers), None)
            if oldest is None:
                return
            self._drop(oldest)

    def _drop(self, key: tuple[object, int]) -> None:
        block = self._blocks.pop(key)
        if not block.readers:
            block.data.cancel()
        self._size -= block.size
        file, number = key
        self._files[file].remove(number)
        if not self._files[file]:
            del self._files[file]
