"""A few calls at the same time, that wait for a network most of their time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_parallel(calls: Sequence[Callable[[], T]], *, threads: int) -> list[T]:
    """Make all calls, in this thread and others that end with them.

    The first call that fails keeps the others from beginning. The threads do not keep Python from ending, and none
    exists between two calls of this function: nothing of it is lost in a fork.

    Args:
        calls: What to call.
        threads: How many are made at a time at most.

    Returns:
        What they returned, in their order.

    Raises:
        BaseException: What the first call that failed raised, once no call is running any more.
    """
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    waiting = iter(enumerate(calls))
    taking = threading.Lock()

    def work() -> None:
        while not failures:
            with taking:
                index, call = next(waiting, (-1, None))
            if call is None:
                return
            try:
                results[index] = call()
            except BaseException as error:  # raised below
                failures.append(error)

    others = [threading.Thread(target=work, name="smddp-s3", daemon=True) for _ in range(min(threads, len(calls)) - 1)]
    started = [thread for thread in others if _starts(thread)]
    work()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(calls))]


def _starts(thread: threading.Thread) -> bool:
    """Start a thread, unless Python ends and lets none begin any more: then this thread does all."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True
