"""What a build writes, understood as it comes: the step it is at, and its last lines.

The classic builder (``Step 5/12 : RUN …``) and BuildKit with plain progress (``#7 [training 3/9] RUN …``, then
``#7 1.234 …``) write differently. BuildKit works on steps side by side: the step that wrote last is the one it is at.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field

LINES_KEPT = 20

_STEP = re.compile(r"Step (\d+/\d+) : (.*)")
_NOTE = re.compile(r" ---> |Removing intermediate container |Sending build context |The command .* returned a non-zero")

_COLOUR = re.compile(r"\x1b\[[\d;]*m")

_BUILDKIT_LINE = re.compile(r"#(\d+) (.*)")
_BUILDKIT_STEP = re.compile(r"\[(?:internal|(?P<place>[^\]]*\d+/\d+))\] (?P<does>.*)")
_BUILDKIT_NOTE = re.compile(r"(DONE|CACHED|CANCELED|sha256:|extracting|transferring|naming|writing|exporting)\b")
_BUILDKIT_SECONDS = re.compile(r"\d+\.\d+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction of the Dockerfile, or what BuildKit does for itself."""

    place: str
    """``5/12``, with BuildKit ``training 3/9``; empty for what is no instruction."""
    does: str
    """The instruction, in one line."""
    began: float = field(default_factory=time.monotonic, compare=False)
    """Seconds of the monotonic clock."""

    def __str__(self) -> str:
        return f"Step {self.place}: {self.does}" if self.place else self.does

    @property
    def takes_time(self) -> bool:
        """Whether it does more than note a setting down."""
        return self.does.startswith(("FROM ", "RUN ", "COPY ", "load metadata for "))

    @property
    def fetches_base(self) -> bool:
        """Whether it is the step that needs the base image."""
        return self.does.startswith(("FROM ", "load metadata for "))


class BuildLog:
    """The state of a build, from the lines that were read so far."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.tail: deque[str] = deque(maxlen=LINES_KEPT)
        """The last lines; with the classic builder, of this step only."""
        self._steps: dict[str, Step] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        line = _COLOUR.sub("", line).rstrip()
        if step := _STEP.match(line):
            self.step = Step(place=step[1], does=_one_line(step[2]))
            self.tail.clear()
        elif buildkit := _BUILDKIT_LINE.match(line):
            self._read_buildkit(buildkit[1], buildkit[2])
        elif line.strip() and not _NOTE.match(line):
            self.tail.append(line)

    def _read_buildkit(self, vertex: str, text: str) -> None:
        if step := _BUILDKIT_STEP.match(text):
            self._steps.setdefault(vertex, Step(place=step["place"] or "", does=_one_line(step["does"])))
        elif not _BUILDKIT_NOTE.match(text):
            self.tail.append(_BUILDKIT_SECONDS.sub("", text, count=1))
        self.step = self._steps.get(vertex, self.step)


def _one_line(instruction: str) -> str:
    return " ".join(instruction.split())
