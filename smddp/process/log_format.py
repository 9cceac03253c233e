"""The format of a log line in a rank, a launcher and a container: ``17:31:50 step=10 epoch=1/3 loss=1.234``.

The text comes first, so that 80 columns show it. INFO is the ordinary level and is not named. The module is named only
if the level is DEBUG. `smddp.failure.printed_error` recognizes the lines.
"""

from __future__ import annotations

import logging
import re
import sys

from smddp.failure import LAUNCHER

_TALKATIVE = ("botocore",)
"""Libraries that log what only their developers need, such as the source of the credentials, at INFO."""


class LogFormat(logging.Formatter):
    """Format a record as time, level, sender and text.

    The level is left out at INFO. The sender is left out below `named_from`, and if it is a rank that the text itself
    names first, or after a short clause: ``the job could not begin: rank 1 on localhost could not reach ...``.
    """

    def __init__(self, sender: str, *, named_from: int, modules: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._sender = sender
        self._named_from = named_from
        self._modules = modules
        # Each line of a launcher has its name: whoever reads the log knows by it which lines are no rank's.
        is_rank = sender not in ("", LAUNCHER)
        self._names_itself = re.compile(rf"(?:[^:\n]{{1,40}}: )?{re.escape(sender)}\b") if is_rank else None

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line; `format` appends the traceback."""
        parts = [self.formatTime(record, self.datefmt)]
        if record.levelno != logging.INFO:
            parts.append(record.levelname)
        if self._modules:
            parts.append(f"{record.name}:")
        is_named = self._names_itself is not None and self._names_itself.match(record.message)
        if self._sender and record.levelno >= self._named_from and not is_named:
            parts.append(f"{self._sender}:")
        return " ".join([*parts, record.message])


def log_or_print(logger: logging.Logger, line: str) -> None:
    """Log a line at INFO; print it if logging is not set up, as in a notebook."""
    if logger.hasHandlers():
        logger.info("%s", line)
    elif logger.manager.disable < logging.INFO:
        stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr  # a notebook shows stderr in red
        stream.write(f"{line}\n")


def start_log(sender: str = LAUNCHER, *, named_from: int = logging.INFO, level: int = logging.INFO) -> None:
    """Log to standard error from `level` on, unless logging is set up."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormat(sender, named_from=named_from, modules=level <= logging.DEBUG))
    root.addHandler(handler)
    root.setLevel(level)
    if level > logging.DEBUG:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(max(level, logging.WARNING))
