"""The program ``matcher.py``, started; whoever has the object is its only client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

from estimators.job_handle import matcher


class MatcherProcess:
    """A process that searches lines for regexes, until `close`, or until this process ends.

    Args:
        regexes: What it searches for.

    Raises:
        OSError: The process could not be started.
    """

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
                start_new_session=True,  # Ctrl-C is not for it
                cwd="/",
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(watched)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.lines: TextIO = self._process.stdin  # type: ignore[assignment]  # typeshed: IO[str]
        """What it reads: JSON, a line each."""
        self.answers: TextIO = self._process.stdout  # type: ignore[assignment]
        """What it has found, likewise."""

    def begin(self) -> None:
        """Tell it the regexes, before the first line. It may take its time to read them.

        Raises:
            BrokenPipeError: It has ended.
        """
        self.lines.write(f"{self._order}\n")

    def kill(self) -> None:
        """End it; both pipes stay for whoever reads or writes them."""
        self._process.kill()
        self._process.wait()
        os.close(self._alive)
