"""The retry policy of all requests to AWS: duration, pauses, and logging."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from smddp.storage.s3_errors import S3_ERRORS, Refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_GLANCE = 0.05  # seconds between two checks for cancellation
_WORTH_SAYING = 1.0  # seconds; shorter pauses are usual with S3, and logged as info


class Cancelled(Exception):  # noqa: N818 - not an error
    """The caller cancelled the request."""


class Retries:
    """Retry a request after transient errors, with growing pauses, until too long has passed without progress."""

    def __init__(
        self, explain: Callable[[Exception], Refusal], *, seconds: float, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the clock of one request, which fails after `seconds` without progress."""
        self._explain = explain
        self._seconds = seconds
        self._cancelled = cancelled
        self.progress()

    def progress(self) -> None:
        """Restart the clock and the pauses, because bytes arrived."""
        self._since = time.monotonic()
        self._pause = _FIRST_PAUSE

    def ask(self, call: Callable[[], T]) -> T:
        """Call until success; raise the last of `S3_ERRORS`, or Cancelled."""
        while True:
            try:
                return call()
            except S3_ERRORS as error:  # noqa: PERF203 - a try costs nothing beside a request
                refused = self._explain(error)
                if not refused.transient or self.waited >= self._seconds:
                    raise
                self._wait(refused)

    @property
    def waited(self) -> float:
        """Seconds since the last progress, or since the start."""
        return time.monotonic() - self._since

    def _wait(self, refused: Refusal) -> None:
        # Random: otherwise all ranks of a job would retry at the same moment.
        pause = random.uniform(0.5, 1.0) * self._pause  # noqa: S311
        logger.log(logging.WARNING if pause >= _WORTH_SAYING else logging.INFO, "%s; asking again", refused.message)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not self._cancelled():
            time.sleep(min(left, _GLANCE))
        if self._cancelled():
            raise Cancelled
