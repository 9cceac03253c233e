"""What the hosts print, as Compose passes it on: shown to the user, its last lines kept for a failure's reason."""

from __future__ import annotations

import io
import os
import re
import sys
from collections import deque
from collections.abc import Iterable
from typing import IO

from estimators.log_view import as_shown

TAIL_LINES = 20

_LINE = re.compile(r"\S*?(?P<host>algo-\d+)-\S*\s*\| ?(?P<text>.*)", re.DOTALL)


class Output:
    """The lines of all hosts."""

    def __init__(self, hosts: Iterable[str], *, shows: bool) -> None:
        """Nothing is read yet.

        Args:
            hosts: Their names.
            shows: Whether to print the lines, each with its host.
        """
        self._tails: dict[str, deque[str]] = {host: deque(maxlen=TAIL_LINES) for host in hosts}
        self._shows = shows

    @property
    def tails(self) -> dict[str, str]:
        """Every host's last lines."""
        return {host: "\n".join(lines) for host, lines in self._tails.items()}

    def follow(self, compose: IO[bytes]) -> None:
        """Read what Compose writes until it ends; its own words are passed over."""
        # By "\n" only: a progress bar's "\r" does not begin a line with the host's name in front.
        for line in io.TextIOWrapper(compose, encoding="utf-8", errors="replace", newline="\n"):
            found = _LINE.fullmatch(line.rstrip("\r\n"))
            if found is None or found["host"] not in self._tails:
                continue
            text = as_shown(found["text"])
            self._tails[found["host"]].append(text)
            if self._shows:
                _say(f"{found['host']} | {text}")


def _say(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # fit() is gone; the conductor ends the job
        discard()


def discard() -> None:
    """Let what is printed from now on go nowhere: nobody reads it, and a full pipe would hold this process up."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
