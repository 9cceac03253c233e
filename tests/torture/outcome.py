"""What came of one kind of torture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How often something was done, and what went wrong."""

    done: int
    """How often."""
    unit: str
    """Of what: ``kills``."""
    notes: str = ""
    """Further figures, for people: ``38 within a save``."""
    failures: tuple[str, ...] = ()
    """One line each; empty if all went well."""
