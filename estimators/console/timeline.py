"""The history of a job: its secondary statuses as consecutive bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from estimators.secret_text import masked_text
from smddp.process.terminal_text import shown_line

_KINDS: Mapping[str, str] = {
    "Training": "training",
    "Interrupted": "lost",
    "Restarting": "lost",
    "Downloading": "copying",
    "DownloadingTrainingImage": "copying",
    "Uploading": "copying",
    "Stopping": "ending",
    "Completed": "done",
    "Failed": "failed",
    "Stopped": "failed",
    "MaxRuntimeExceeded": "failed",
    "MaxWaitTimeExceeded": "failed",
}
"""The kind of each status. All others count as ``waiting``."""
_LEAST_SHARE = 0.004
"""Least share of the whole bar, so that even a short status is visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One secondary status, from its start to the start of the next one."""

    status: str
    kind: str
    """``waiting``, ``copying``, ``training``, ``lost``, ``ending``, ``done`` or ``failed``."""
    message: str
    began: datetime
    seconds: float
    left: float
    """Start of its bar, in percent."""
    width: float
    """Width of its bar, in percent."""
    attempt: int
    """The number of the training attempt, from 1; 0 for other phases."""


def phases(transitions: Sequence[Mapping[str, Any]], now: datetime) -> list[Phase]:
    """Return a job's phases from its SecondaryStatusTransitions; a phase without an end lasts until `now`."""
    starts = [each["StartTime"] for each in transitions]
    ends = [*starts[1:], *(each.get("EndTime", now) for each in transitions[-1:])]
    spans = [max(0.0, (end - start).total_seconds()) for start, end in zip(starts, ends, strict=True)]
    whole = sum(spans) or 1.0
    shares = [max(span / whole, _LEAST_SHARE) for span in spans]
    shown, left, attempt = [], 0.0, 0
    for each, seconds, share in zip(transitions, spans, shares, strict=True):
        kind = _KINDS.get(each["Status"], "waiting")
        attempt += kind == "training"
        width = 100 * share / sum(shares)
        shown.append(
            Phase(
                status=each["Status"],
                kind=kind,
                message=masked_text(shown_line(each.get("StatusMessage", ""))),
                began=each["StartTime"],
                seconds=seconds,
                left=left,
                width=width,
                attempt=attempt if kind == "training" else 0,
            )
        )
        left += width
    return shown
