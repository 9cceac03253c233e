"""The end of a host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, frozen=True)
class Exit:
    """The end of a host, as its executor saw it."""

    code: int
    """Exit code of the program; 128 + the signal's number if a signal ended it."""
    lost: str | None = None
    """Cause of the end if neither the program nor the platform ended the host, such as a lost machine; else None."""
    shortage: str | None = None
    """Resource that ran out, such as memory, if the machine ended a process for it; else None."""
