"""The ways in which an attempt of a job ends."""

from __future__ import annotations

import enum


class Ending(enum.Enum):
    """Why an attempt of a job ends."""

    DONE = enum.auto()
    """Every host exited with code 0."""
    FAILED = enum.auto()
    """A host exited with another code, its data could not be sent, or the platform failed for good."""
    INTERRUPT = enum.auto()
    """The spot instances are reclaimed; another attempt follows."""
    LOST = enum.auto()
    """A host vanished or the platform failed, and another attempt follows: of a spot job, or by RetryStrategy."""
    STOP = enum.auto()
    """A client stopped the job, or a time limit was reached."""
    CLOSE = enum.auto()
    """The engine ends."""

    @property
    def goes_on(self) -> bool:
        """Whether another attempt follows."""
        return self in (Ending.INTERRUPT, Ending.LOST)


class StoppedError(Exception):
    """Raised in the job's thread at its next step if the job must end: a stop, a time limit, or the engine's end."""
