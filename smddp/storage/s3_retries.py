"""The one policy of retries of what is asked of AWS: how long, with which pauses, and what it logs."""

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
_GLANCE = 0.05  # seconds between two looks whether it was cancelled
_WORTH_SAYING = 1.0  # seconds; shorter pauses are S3's everyday life


class Cancelled(Exception):  # noqa: N818 - it is none
    """Nobody wants the answer any more."""


class Retries:
    """Ask again for what failed for a while, with pauses that grow, until nothing has come for too long."""

    def __init__(
        self, explain: Callable[[Exception], Refusal], *, seconds: float, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin with one request.

        Args:
            explain: Says what an error of S3 means.
            seconds: How long to go on without a byte.
            cancelled: Whether to end it.
        """
        self._explain = explain
        self._seconds = seconds
        self._cancelled = cancelled
        self.progress()

    def progress(self) -> None:
        """Begin anew: something came."""
        self._since = time.monotonic()
        self._pause = _FIRST_PAUSE

    def ask(self, call: Callable[[], T]) -> T:
        """Call until it succeeds.

        Raises:
            BotoCoreError: What the last call raised, or another of S3_ERRORS: S3 refused, or did not answer for too
                long.
            Cancelled: It was cancelled.
        """
        while True:
            try:
                return call()
            except S3_ERRORS as error:  # noqa: PERF203 - a try is nothing beside a request
                refused = self._explain(error)
                if not refused.transient or self.waited >= self._seconds:
                    raise
                self._wait(refused)

    @property
    def waited(self) -> float:
        """Seconds since something came, or since the beginning."""
        return time.monotonic() - self._since

    def _wait(self, refused: Refusal) -> None:
        # Random, or all ranks of a job would come again at the same moment.
        pause = random.uniform(0.5, 1.0) * self._pause  # noqa: S311
        logger.log(logging.WARNING if pause >= _WORTH_SAYING else logging.INFO, "%s; asking again", refused.message)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not self._cancelled():
            time.sleep(min(left, _GLANCE))
        if self._cancelled():
            raise Cancelled
