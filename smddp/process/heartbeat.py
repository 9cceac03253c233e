"""Log a line every ten seconds while something long goes on that shows no progress of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0


class Heartbeat:
    """Log ``no step yet: 10 s so far`` from `start` to `stop`, or for `most` seconds.

    As a context it covers a block. What ends within ten seconds logs nothing. `what` may be a function, called for each
    line in a thread; an empty text logs nothing. Once `until` returns True, no more lines come. `say` writes the line
    elsewhere than to the log.
    """

    def __init__(
        self,
        what: str | Callable[[], str],
        *,
        until: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = logger.info,
        most: float = math.inf,
        every: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._what = what
        self._until = until
        self._say = say
        self._most = most
        self._every = every
        self._stopped = threading.Event()

    def start(self, what: str | None = None) -> None:
        """Begin, in a thread; a second start ends the first, and begins anew, with another `what` if given."""
        self._stopped.set()
        self._stopped = threading.Event()
        self._what = self._what if what is None else what
        threading.Thread(target=self._beat, args=(self._stopped, self._what), name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End; do nothing if it is not under way."""
        self._stopped.set()

    def _beat(self, stopped: threading.Event, what: str | Callable[[], str]) -> None:
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < self._most and not stopped.wait(self._every):
            if self._until():
                return
            if text := what if isinstance(what, str) else what():
                self._say(f"{text}: {seconds + self._every:.0f} s so far")

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
