"""One thing that is wrong with a job before it is sent, in the words of the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Severity = Literal["error", "warning"]

_LISTED = 40
"""Up to so many names `nearest` lists them all; of more it shows some `_SAMPLED`, from the first to the last."""
_SAMPLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What was found in one parameter, what is allowed there, and what to do."""

    severity: Severity
    """An error can't work, or would cost money for nothing; a warning may be what was meant."""
    parameter: str
    """The Estimator's parameter, or ``inputs`` or ``job_name`` of ``fit()``."""
    found: str
    """What is there."""
    remedy: str
    """What is allowed instead, and what to do."""

    def __str__(self) -> str:
        return f"{self.parameter}: {self.found}. {self.remedy}"


def error(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that keeps the job from being sent."""
    return Problem(severity="error", parameter=parameter, found=found, remedy=remedy)


def warning(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that is told, and no more."""
    return Problem(severity="warning", parameter=parameter, found=found, remedy=remedy)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` with the names most like `name`; if none is, all of `known`, or a sample of many."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if len(names) > _LISTED:
        return f"There are {len(names)}, such as {', '.join(names[:: len(names) // _SAMPLED])}."
    return f"There are: {', '.join(names)}."
