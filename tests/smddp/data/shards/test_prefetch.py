"""A producer in a thread: its items in order, its errors in their place, and nothing left of it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Generator

import pytest

from smddp.data.shards.prefetch import prefetch


class Counting:
    """A producer that says how far it has come, and whether it is closed."""

    def __init__(self, count: int = 1_000_000, error: Exception | None = None) -> None:
        self.produced = 0
        self.is_closed = False
        self.count, self.error = count, error
        self.thread: threading.Thread | None = None

    def __call__(self, is_abandoned: Callable[[], bool]) -> Generator[int, None, None]:
        self.thread = threading.current_thread()
        try:
            for number in range(self.count):
                self.produced += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


def test_gives_all_items_in_order_and_ends_the_thread() -> None:
    counting = Counting(1000)
    assert list(prefetch(counting, ahead=3)) == list(range(1000))
    assert counting.thread is not None
    assert not counting.thread.is_alive()


def test_is_no_further_ahead_than_it_may() -> None:
    counting = Counting()
    items = prefetch(counting, ahead=3)
    assert next(items) == 0
    until = time.monotonic() + 10
    while counting.produced < 1 + 3 + 1 and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)  # and goes no further
    assert counting.produced == 1 + 3 + 1  # given out, waiting, under way
    del items
    assert counting.is_closed


def test_an_error_comes_after_the_items_before_it() -> None:
    items = prefetch(Counting(2, OSError("broken")), ahead=5)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(OSError, match="broken"):
        next(items)
    assert list(items) == []


def test_starts_with_the_first_item_that_is_asked_for() -> None:
    counting = Counting()
    items = prefetch(counting, ahead=3)
    time.sleep(0.02)
    assert counting.thread is None
    del items
    assert counting.thread is None


def test_forgotten_in_a_circle_it_ends_when_the_circle_is_collected() -> None:
    counting = Counting()
    items = prefetch(counting, ahead=3)
    next(items)
    circle: list[object] = [items]
    circle.append(circle)
    del items, circle
    gc.collect()
    assert counting.is_closed
    assert counting.thread is not None
    assert not counting.thread.is_alive()


def test_a_producer_that_waits_long_can_ask_whether_it_is_wanted() -> None:
    asked = threading.Event()

    def produce(is_abandoned: Callable[[], bool]) -> Generator[int, None, None]:
        yield 0
        asked.set()
        while not is_abandoned():
            time.sleep(0.001)

    items = prefetch(produce, ahead=1)
    next(items)
    assert asked.wait(10)
    items.close()  # type: ignore[attr-defined]
    assert "smddp shard reader" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
def test_a_fork_that_inherits_it_does_not_wait_for_its_thread() -> None:
    items = prefetch(Counting(), ahead=1_000_000)  # it takes and lets go of the lock all the time
    next(items)
    for _ in range(40):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            del items
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert next(items) == 1
