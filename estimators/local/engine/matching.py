"""Sends lines to the matcher process, and takes its answers.

The thread that reads a host's lines never waits for the process: one thread sends, another takes the answers. The
buffer before the sender is bounded; if the process falls behind, the oldest lines are dropped, and the log says how
many.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from estimators.job_handle.metrics import MatcherProcess

MAX_WAITING_BYTES = 16 << 20
SETTLE_SECONDS = 10.0
"""How long a job's end waits for lines that are not matched yet."""
_LINE_BYTES = 64  # overhead of a line, besides its text
_BATCH_LINES = 256


class Matching:
    """A matcher process from the first line to the last; raise OSError if it can't be started.

    ``found`` gets the number of a regex and the text of its first group, or None if the regex was given up.
    """

    def __init__(
        self, regexes: Sequence[str], found: Callable[[int, str | None], None], say: Callable[[str], None]
    ) -> None:
        self._found = found
        self._say = say
        # Guards the four below; no other lock is taken while it is held. Bound: lines of at most MAX_WAITING_BYTES
        # wait, and the oldest are dropped first.
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._waiting = 0
        self._dropped = 0
        self._ended = False
        self._process = MatcherProcess(regexes)
        self._threads = [
            threading.Thread(target=self._send_all, name="metrics out", daemon=True),
            threading.Thread(target=self._take_answers, name="metrics in", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, line: str) -> None:
        """Queue a line for the search."""
        with self._changed:
            self._lines.append(line)
            self._waiting += len(line) + _LINE_BYTES
            while self._waiting > MAX_WAITING_BYTES:
                self._drop()
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all lines are searched, at most `SETTLE_SECONDS`, and end the process."""
        deadline = time.monotonic() + SETTLE_SECONDS
        with self._changed:
            self._ended = True
            self._changed.notify()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._say(
                f"[platform] The last lines are not searched for metrics: that took over {SETTLE_SECONDS:g} seconds"
            )
        self._process.kill()
        for thread in self._threads:
            thread.join()
        if self._dropped:
            self._say(
                f"[platform] {self._dropped} lines were not searched for metrics: they came faster than the "
                "definitions' regexes take them"
            )

    def _drop(self) -> None:
        self._waiting -= len(self._lines.popleft()) + _LINE_BYTES
        self._dropped += 1

    def _send_all(self) -> None:
        try:
            with self._process.lines as pipe:
                self._process.begin()
                while batch := self._take_batch():
                    pipe.writelines(f"{json.dumps(line)}\n" for line in batch)
                    pipe.flush()
        except BrokenPipeError:
            if not self._ended:
                self._say("[platform] Lines are not searched for metrics any more: the process that does it has ended")

    def _take_batch(self) -> list[str]:
        """Wait for the next lines, and return them; empty after the last line."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ended)
            batch = [self._lines.popleft() for _ in range(min(_BATCH_LINES, len(self._lines)))]
            self._waiting -= sum(len(line) + _LINE_BYTES for line in batch)
            return batch

    def _take_answers(self) -> None:
        with self._process.answers as answers:
            for line in answers:
                if not line.endswith("\n"):  # the process was killed in the middle of it
                    return
                self._found(*json.loads(line))
