"""A note for a person on one line of a migrated script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Note:
    """A finding at a line, and a remedy."""

    line: int
    """Line of the script before its migration, counted from 1."""
    is_open: bool
    """Whether a person must do something, because it could not be migrated."""
    found: str
    """The finding: why it can't stay, or what changes."""
    remedy: str
    """What to do."""

    def __str__(self) -> str:
        return f"{'to do' if self.is_open else 'note'}: {self.found}. {self.remedy}"
