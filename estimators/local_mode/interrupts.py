"""Ctrl-C while a job runs: the hosts are asked to stop and save their work, and the SDK hears nothing of it.

A KeyboardInterrupt in the middle of the SDK would have it collect the files of hosts that are still writing them. Where
another exception does come out of the SDK, the hosts are asked the same, and waited for.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType

from estimators.local_mode.overlay import STOP_SECONDS

logger = logging.getLogger(__name__)

_TIDY_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class Interrupts:
    """Turns Ctrl-C into a request to the program that runs the containers, for a block."""

    def __init__(self, process: Path) -> None:
        """Prepare.

        Args:
            process: The file that holds that program's process id while it runs.
        """
        self.came = False
        """Whether there was a Ctrl-C."""
        self.had_to_end_it = False
        """Whether the block was left, by an exception, while the containers ran."""
        self._process = process
        self._catches = False

    def __enter__(self) -> Interrupts:
        # A handler of the user's own stays, and only the main thread may have one.
        self._catches = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._catches:
            signal.signal(signal.SIGINT, self._pass_on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._end()
        if self._catches:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _end(self) -> None:
        """Whoever breaks off the SDK, as a handler of the user's may, must not leave hosts running for nobody."""
        try:
            os.kill(int(self._process.read_text()), signal.SIGHUP)  # what it prints is not read any more
        except (OSError, ValueError):  # no container runs
            return
        self.had_to_end_it = True
        if not self.came:
            logger.warning("fit() was broken off: each host has %d s to save a checkpoint", STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS + _TIDY_SECONDS
        while self._process.exists():
            if time.monotonic() > deadline:
                logger.warning("the hosts have not ended: look for them with `docker ps`, and stop them")
                return
            time.sleep(_LOOK_SECONDS)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        try:
            os.kill(int(self._process.read_text()), signal.SIGTERM)
        except (OSError, ValueError):  # no container runs: not yet, or no more
            signal.default_int_handler(number, frame)
        if self.came or self.had_to_end_it:
            logger.warning("ending the hosts at once")
        else:
            text = "stopping: each host has %d s to save a checkpoint. Ctrl-C once more ends them at once"
            logger.warning(text, STOP_SECONDS)
        self.came = True
