"""Errors of a signal's handler, which Python raises in the main thread wherever it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class HandlerError(RuntimeError):
    """Stands for that of torch's handler, once a DataLoader's worker is killed."""


@contextmanager
def handler_error(seconds: float, *, then: Callable[[], object] | None = None) -> Iterator[None]:
    """Raise HandlerError in the main thread after so many seconds, unless this context has ended by then.

    ``then`` is called in another thread 0.2 s later.
    """

    def fail(*_: object) -> None:
        if then is not None:
            threading.Timer(0.2, then).start()
        raise HandlerError("DataLoader worker (pid 7) is killed by signal: Killed.")

    before = signal.signal(signal.SIGALRM, fail)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def alarm_at_the_first_call(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the error of a `handler_error` come 0.1 s after a method is called first, however late that is."""
    called, once = getattr(owner, name), threading.Lock()

    def call(*arguments: Any, **options: Any) -> Any:
        if once.acquire(blocking=False):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        return called(*arguments, **options)

    patch.setattr(owner, name, call)
