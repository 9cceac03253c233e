"""Searches lines for regexes that a job's request brings, in a process of its own: none of them can hold this one up.

Python's `re` lets no other thread and no signal run while it matches: one regex of a few characters would hang a
notebook, or the console with all its pages. ``local/engine/matching.py`` does the same for lines that nobody waits for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from estimators.job_handle import matcher


class BoundedSearch:
    """A process that searches, until `close`.

    Args:
        regexes: What it searches for.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        watched, self._alive = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", matcher.__file__, str(watched)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[watched],
                start_new_session=True,  # Ctrl-C is not for it
                cwd="/",
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(watched)
        self._ask([regexes, matcher.MATCH_SECONDS, matcher.MEAN_SECONDS])

    def search(self, line: str) -> list[tuple[int, str | None]]:
        """Return what is found in a line: a regex's number and the text of its first group; None if it is given up.

        Raises:
            OSError: The process has ended.
        """
        self._ask(line, None)
        assert self._process.stdout is not None
        found: list[tuple[int, str | None]] = []
        while (answer := self._process.stdout.readline()).endswith("\n"):
            if (content := json.loads(answer)) is None:
                return found
            found.append((content[0], content[1]))
        raise BrokenPipeError("the process that searches lines has ended")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        os.close(self._alive)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # a line is left in it
                continue

    def _ask(self, *contents: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{json.dumps(each)}\n" for each in contents))
        self._process.stdin.flush()
