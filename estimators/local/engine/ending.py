"""The ways in which an attempt of a job ends, and how often in a row it may end by the loss of a host."""

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


# Limits how often in a row a spot job may lose a host without a new checkpoint.
#
# A lost machine is no fault of the program, so the job begins again. Without a limit, a program that kills itself in a
# way that looks like a loss would begin again for ever.
_MOST_LOSSES = 3
IN_VAIN = f"These are {_MOST_LOSSES} losses in a row without a new checkpoint: the job does not begin again."


class HostLossLimit:
    """Counts the attempts of one job that ended by a loss."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def too_many(self, ending: Ending, *, progressed: bool) -> bool:
        """Count the end of an attempt; return whether the job must fail now.

        ``progressed`` says whether the attempt brought a checkpoint to S3.
        """
        self._in_a_row = self._in_a_row + 1 if ending is Ending.LOST and not progressed else 0
        return self._in_a_row >= _MOST_LOSSES
