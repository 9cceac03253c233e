"""Search lines for the regexes of a job's request in a separate process, so that no regex can block this one.

While Python's `re` matches, no other thread and no signal handler runs: one regex of a few characters would hang a
notebook, or the whole console. A caller here waits for the answer. The local platform, whose jobs do not wait for
metrics, uses the same process in ``local/engine/matching.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from estimators.job_handle.matcher_process import MatcherProcess


class BoundedSearch:
    """A process that searches lines, until `close`. Starting it may raise OSError. For one thread at a time."""

    def __init__(self, regexes: Sequence[str]) -> None:
        self._process = MatcherProcess(regexes)
        self._process.begin()

    def search(self, line: str) -> list[tuple[int, str | None]]:
        """Return the matches in a line: each regex's number and its first group, or None if the regex took too long.

        Raise OSError if the process has ended.
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
        with suppress(BrokenPipeError):  # its buffer still holds a line
            self._process.lines.close()
