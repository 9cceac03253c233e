"""What a build writes, understood as it comes: the step it is at, how long, and its last lines.

The classic builder (``Step 5/12 : RUN …``) and BuildKit with plain progress (``#7 [training 3/9] RUN …``, then
``#7 1.234 …``) write differently. BuildKit works on steps side by side: the step that wrote last is the one it is at.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field

LINES_KEPT = 20

_CLASSIC_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_CLASSIC_NOTE = re.compile(r" ?---> |Removing intermediate container |Sending build context ")
_BUILDKIT_LINE = re.compile(r"#(\d+) (.*)")
_BUILDKIT_STEP = re.compile(r"\[(?:(?P<stage>\S+) +)?(?:(?P<number>\d+)/(?P<total>\d+))?\] (?P<does>.*)")
_BUILDKIT_NOTE = re.compile(r"(DONE|CACHED|CANCELED|sha256:|extracting |transferring |naming |writing |exporting )")
_SECONDS = re.compile(r"\d+\.\d+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction of the Dockerfile, or what BuildKit does for itself."""

    place: str
    """``5/12``, or with BuildKit ``training 3/9``; empty for what is no instruction."""
    does: str
    """The instruction, in one line."""
    began: float = field(default_factory=time.monotonic, compare=False)

    @property
    def fetches_base(self) -> bool:
        """Whether it is the step that needs the base image."""
        return self.does.startswith(("FROM ", "load metadata for "))

    def __str__(self) -> str:
        return f"Step {self.place}: {self.does}" if self.place else self.does


class BuildLog:
    """The state of a build, from the lines that were read so far."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._steps: dict[str, Step] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        line = line.rstrip()
        if classic := _CLASSIC_STEP.match(line):
            self.step = Step(place=f"{classic[1]}/{classic[2]}", does=_one_line(classic[3]))
        elif buildkit := _BUILDKIT_LINE.match(line):
            self._read_buildkit(buildkit[1], buildkit[2])
        elif line.strip() and not _CLASSIC_NOTE.match(line):
            self.tail.append(line)

    def _read_buildkit(self, vertex: str, text: str) -> None:
        if vertex not in self._steps and (found := _BUILDKIT_STEP.match(text)):
            place = f"{found['number']}/{found['total']}" if found["number"] else ""
            named = found["stage"] if place and found["stage"] else ""
            self._steps[vertex] = Step(place=f"{named} {place}".strip(), does=_one_line(found["does"]))
        elif not _BUILDKIT_NOTE.match(text):
            self.tail.append(_SECONDS.sub("", text, count=1))
        self.step = self._steps.get(vertex, self.step)


def _one_line(instruction: str) -> str:
    return " ".join(instruction.split())
