"""What a person should know of a migrated script, at one of its lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Note:
    """What was found at a line, and what to do."""

    line: int
    """Of the script before its migration, from 1 on."""
    is_open: bool
    """Whether a person must do something: it could not be migrated."""
    found: str
    """What is there, and why it can't stay, or what changes."""
    remedy: str
    """What to do."""

    def __str__(self) -> str:
        return f"{'to do' if self.is_open else 'note'}: {self.found}. {self.remedy}"
