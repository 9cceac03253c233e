"""Searches lines for regexes that a job's request brings, in a process of its own: none of them can hold this one up.

Python's `re` lets no other thread and no signal run while it matches: one regex of a few characters would hang a
notebook, or the console with all its pages. Who searches here waits for the answer; the local platform, whose jobs wait
for no metric, has the same process in ``local/engine/matching.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from estimators.job_handle.matcher_process import MatcherProcess


class BoundedSearch:
    """A process that searches, until `close`.

    Args:
        regexes: What it searches for.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        self._process = MatcherProcess(regexes)
        self._process.begin()

    def search(self, line: str) -> list[tuple[int, str | None]]:
        """Return what is found in a line: a regex's number and the text of its first group; None if it is given up.

        Raises:
            OSError: The process has ended.
        """
        self._process.lines.write(f"{json.dumps(line)}\n{json.dumps(None)}\n")
        self._process.lines.flush()
        found: list[tuple[int, str | None]] = []
        while (answer := self._process.answers.readline()).endswith("\n"):
            if (content := json.loads(answer)) is None:
                return found
            found.append((content[0], content[1]))
        raise BrokenPipeError("the process that searches lines has ended")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.answers.close()
        with suppress(BrokenPipeError):  # a line is left in it
            self._process.lines.close()
