"""Start ``matcher.py``. The object's owner is the program's only client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

from estimators.job_handle import matcher


class MatcherProcess:
    """A process that searches lines for regexes, until `kill` or the end of this process. May raise OSError."""

    def __init__(self, regexes: Sequence[str]) -> None:
        self._order = json.dumps([regexes, matcher.MATCH_SECONDS, matcher.MEAN_SECONDS])
        watched, self._alive = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", matcher.__file__, str(watched)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[watched],
                start_new_session=True,  # so that Ctrl-C does not reach it
                cwd="/",
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(watched)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.lines: TextIO = self._process.stdin  # type: ignore[assignment]  # typeshed: IO[str]
        """Its input: one JSON value on each line."""
        self.answers: TextIO = self._process.stdout  # type: ignore[assignment]
        """Its output, in the same form."""

    def begin(self) -> None:
        """Send the regexes, before the first line. May block, or raise BrokenPipeError if the process has ended."""
        self.lines.write(f"{self._order}\n")

    def kill(self) -> None:
        """End the process. Both pipes stay open: their user closes them."""
        self._process.kill()
        self._process.wait()
        os.close(self._alive)
