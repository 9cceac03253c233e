"""Run a few calls that wait for the network or a disk, or release the GIL, in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from smddp.threads import work_together

T = TypeVar("T")


def in_parallel(calls: Sequence[Callable[[], T]], *, threads: int) -> list[T]:
    """Make all calls, at most `threads` at a time, and return their results in order.

    After a failure no further call starts, and the first exception is raised once no call runs. The threads are daemons
    and end before this returns, so a fork between two calls of this function loses nothing.
    """
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    waiting = iter(enumerate(calls))
    taking = threading.Lock()  # guards `waiting`, for one `next` only; calls run outside it

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

    work_together(work, threads=min(threads, len(calls)), name="smddp-s3", stop=failures.append)
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(calls))]
