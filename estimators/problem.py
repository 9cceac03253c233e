"""One problem of a job before it is sent, in the terms of the Estimator's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Severity = Literal["error", "warning"]

_LISTED = 40
"""`nearest` lists up to this many names in full; of more it shows about `_SAMPLED`, evenly spaced."""
_SAMPLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What was found in one parameter, what is allowed there, and what to do."""

    severity: Severity
    """An error can't work, or would waste money; a warning may be intended."""
    parameter: str
    """The Estimator's parameter, or ``inputs`` or ``job_name`` of ``fit()``."""
    found: str
    """What the parameter holds, or lacks."""
    remedy: str
    """What is allowed instead, and what to do."""

    def __str__(self) -> str:
        return f"{self.parameter}: {self.found}. {self.remedy}"


def error(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that prevents the job from being sent."""
    return Problem(severity="error", parameter=parameter, found=found, remedy=remedy)


def warning(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that is logged, and does not prevent the job from being sent."""
    return Problem(severity="warning", parameter=parameter, found=found, remedy=remedy)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean …?`` with the names most similar to `name`; if none are, list `known`, or a sample."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if len(names) > _LISTED:
        return f"There are {len(names)}, such as {', '.join(names[:: len(names) // _SAMPLED])}."
    return f"There are: {', '.join(names)}."
