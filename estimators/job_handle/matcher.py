"""The process that matches a job's lines against its metric definitions, each match within a limit of CPU time.

While Python's `re` matches, nothing else in its process runs, and a regex of a few characters can take years. So it
matches in this separate program, which can be interrupted. It runs as ``python -I -S matcher.py ALIVE_FD`` and imports
nothing of this project.

1. The first line of standard input is JSON: the regexes, the most seconds of a match, and the mean seconds per line.
2. Each further line is ``[log line, time]``. For each match, standard output gets ``[number, first group, time]``.
3. ``[number, null, time]`` means that the regex took too long; it is not tried again.
4. A line ``null`` is answered with ``null`` once all lines before it have been searched.
5. The program ends with its input. In the middle of a match it ends when the pipe behind ALIVE_FD is closed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import NoReturn

MATCH_SECONDS = 0.5
"""Seconds of CPU time for one match; a regex that needs more is no longer tried."""
MEAN_SECONDS = 0.01
"""Mean seconds of CPU time for each line, beyond the first `MATCH_SECONDS`."""


class _TooSlow(Exception):  # noqa: N818  # a signal, not an error
    """A match has used up its time."""


class _Budget:
    """The CPU time that a regex may take: an initial amount, and a little more with each line."""

    def __init__(self, most: float, each: float) -> None:
        self._most = most
        self._each = each
        self._left = most

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Search a line; raise _TooSlow if the time is used up."""
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, self._left)
        found = pattern.search(text)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._left = min(self._most, self._left + self._each - (time.process_time() - began))
        if self._left <= 0:
            raise _TooSlow
        return found


def main(alive: int) -> None:
    """Answer until the input ends."""
    import fcntl  # only in the program, not when another module imports the two numbers above

    # SIGIO arrives when the other end of the pipe is closed; by default it ends the program.
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETFL, os.O_ASYNC)
    signal.signal(signal.SIGVTALRM, _give_up)
    regexes, most, each = json.loads(sys.stdin.readline())
    patterns = {number: (re.compile(regex), _Budget(most, each)) for number, regex in enumerate(regexes)}
    for line in sys.stdin:
        if (order := json.loads(line)) is None:
            _write(None)
            continue
        text, timestamp = order
        for number, (pattern, budget) in list(patterns.items()):
            try:
                found = budget.search(pattern, text)
            except _TooSlow:
                _write([number, None, timestamp])
                del patterns[number]
                continue
            if found and found[1] is not None:
                _write([number, found[1], timestamp])


def _give_up(*_: object) -> NoReturn:
    raise _TooSlow


def _write(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
