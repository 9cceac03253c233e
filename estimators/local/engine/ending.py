"""How an attempt of a job may end."""

from __future__ import annotations

import enum


class Ending(enum.Enum):
    """Why an attempt of a job ends."""

    DONE = enum.auto()
    """Every host ended with 0."""
    FAILED = enum.auto()
    """A host ended with another code, or its data could not be sent; or the platform failed, for good."""
    INTERRUPT = enum.auto()
    """The spot instances are taken away; another life follows."""
    LOST = enum.auto()
    """A host is gone without notice, or the platform failed, and another life follows: spot, or RetryStrategy."""
    STOP = enum.auto()
    """Somebody asked for it, or a time limit is reached."""
    CLOSE = enum.auto()
    """The engine ends."""

    @property
    def goes_on(self) -> bool:
        """Whether another life follows."""
        return self in (Ending.INTERRUPT, Ending.LOST)


class StoppedError(Exception):
    """Raised in the job's thread, at the next step, when the job was stopped before its program ran."""
