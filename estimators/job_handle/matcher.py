"""The process that matches a job's lines against its metric definitions, each match within a limit of CPU time.

Python's `re` lets nothing else run while it matches, and a regex of a few characters can take it years. So it matches
here, where it can be cut short: a program of its own, run as ``python -I -S matcher.py ALIVE_FD``, that imports nothing
of this project. Standard input brings one line of JSON (the regexes, the most seconds of a match, and the seconds that
it may take for each line on average), then each line as JSON. Standard output carries ``[regex's number, text of the
first group]`` for each that is found, and ``[number, null]`` for a regex that took too long and is not tried again; a
line ``null`` is answered with ``null`` once all lines before it are searched. The input's end is the program's; so is,
in the middle of a match, that of the pipe behind ALIVE_FD, which nobody writes to.
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
"""CPU time that one match may take; a regex that needs more is given up."""
MEAN_SECONDS = 0.01
"""CPU time that it may take for each line, after the first `MATCH_SECONDS`."""


class _TooSlow(Exception):  # noqa: N818  # a signal, not an error
    """A match has used up its time."""


class _Budget:
    """The CPU time that a regex may take: some at once, and more with each line."""

    def __init__(self, most: float, each: float) -> None:
        self._most = most
        self._each = each
        self._left = most

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Search a line.

        Raises:
            _TooSlow: The time is used up.
        """
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
    import fcntl  # here, and not where the two numbers above are imported

    # SIGIO, which ends a program that does not ask for it, comes when the pipe's other end is closed.
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETFL, os.O_ASYNC)
    signal.signal(signal.SIGVTALRM, _give_up)
    regexes, most, each = json.loads(sys.stdin.readline())
    patterns = {number: (re.compile(regex), _Budget(most, each)) for number, regex in enumerate(regexes)}
    for line in sys.stdin:
        text = json.loads(line)
        if text is None:
            _write(None)
            continue
        for number, (pattern, budget) in list(patterns.items()):
            try:
                found = budget.search(pattern, text)
            except _TooSlow:
                _tell(number, None)
                del patterns[number]
                continue
            if found and found[1] is not None:
                _tell(number, found[1])


def _give_up(*_: object) -> NoReturn:
    raise _TooSlow


def _tell(number: int, text: str | None) -> None:
    _write([number, text])


def _write(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
