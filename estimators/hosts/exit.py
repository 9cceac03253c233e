"""How a host ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, frozen=True)
class Exit:
    """The end of a host, as whoever ran it saw it."""

    code: int
    """The program's exit code; 128 + the signal's number if a signal ended it."""
    lost: str | None = None
    """What ended the host, if neither its program nor who started it did, as when a machine is lost."""
    shortage: str | None = None
    """What the host had too little of, such as memory, if the machine ended something of it for that."""
