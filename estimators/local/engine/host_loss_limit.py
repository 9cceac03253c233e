"""Limits how often in a row a spot job may lose a host without a new checkpoint.

A lost machine is no fault of the program, so the job begins again. Without a limit, a program that kills itself in a
way that looks like a loss would begin again for ever.
"""

from __future__ import annotations

from estimators.local.engine.ending import Ending

MOST_LOSSES = 3
IN_VAIN = f"These are {MOST_LOSSES} losses in a row without a new checkpoint: the job does not begin again."


class HostLossLimit:
    """Counts the attempts of one job that ended by a loss."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def too_many(self, ending: Ending, *, progressed: bool) -> bool:
        """Count the end of an attempt; return whether the job must fail now.

        ``progressed`` says whether the attempt brought a checkpoint to S3.
        """
        self._in_a_row = self._in_a_row + 1 if ending is Ending.LOST and not progressed else 0
        return self._in_a_row >= MOST_LOSSES
