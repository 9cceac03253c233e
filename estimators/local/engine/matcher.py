"""The process that matches a job's lines against its metric definitions, each match within a limit of CPU time.

Python's `re` lets nothing else run while it matches, and a regex of a few characters can take it years. So it matches
here, where it can be cut short: a program of its own, run as ``python -I -S matcher.py``, that imports nothing of this
project. Standard input brings one line of JSON (the regexes, and the limit in seconds), then each line as JSON.
Standard output carries ``[regex's number, text of the first group]`` for each that is found, and ``[number, null]`` for
a regex that took too long and is not tried again. The input's end is the program's.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import NoReturn


class _TooSlow(Exception):  # noqa: N818  # a signal, not an error
    """A match has used up its time."""


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGVTALRM, _give_up)
    regexes, limit = json.loads(sys.stdin.readline())
    patterns = dict(enumerate(map(re.compile, regexes)))
    for line in sys.stdin:
        text = json.loads(line)
        for number in list(patterns):
            if not _match(number, patterns[number], text, limit):
                del patterns[number]


def _match(number: int, pattern: re.Pattern[str], text: str, limit: float) -> bool:
    """Tell what is found; False if it takes too long."""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, limit)
        found = pattern.search(text)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TooSlow:
        _tell(number, None)
        return False
    if found and found[1] is not None:
        _tell(number, found[1])
    return True


def _give_up(*_: object) -> NoReturn:
    raise _TooSlow


def _tell(number: int, text: str | None) -> None:
    sys.stdout.write(f"{json.dumps([number, text])}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
