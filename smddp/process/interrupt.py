"""Ctrl-C in a script of the user's: an interruption that was explained in a log line needs no traceback.

The exception stays of Python's own type: only that makes a script end by SIGINT, which a shell shows as 130.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


@contextmanager
def interruption_told(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log one line that says what Ctrl-C has ended, in place of a traceback, if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        logger.warning("Ctrl-C: %s", what)
        without_traceback(interrupt)
        raise


def without_traceback(interrupt: BaseException) -> None:
    """Let Python show no traceback if this interruption ends the program. Other exceptions go to the present hook."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if error is not interrupt:
            show(kind, error, traceback)

    sys.excepthook = hook
