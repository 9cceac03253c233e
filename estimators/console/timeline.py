"""What became of a job, and when: its secondary statuses as bars one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from estimators.secret_text import masked_text
from smddp.process.shown_text import shown_line

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
"""What a status is to who looks at it; those that are not named here are waiting."""
_LEAST_SHARE = 0.004
"""Of the whole bar: a shorter status could not be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One secondary status, from its beginning to the next one's."""

    status: str
    kind: str
    """``waiting``, ``copying``, ``training``, ``lost``, ``ending``, ``done`` or ``failed``."""
    message: str
    began: datetime
    seconds: float
    left: float
    """Where its bar begins, 0 to 100."""
    width: float
    """How wide the bar is, of 100."""
    attempt: int
    """Which training it is, from 1; 0 if it is none."""


def phases(transitions: Sequence[Mapping[str, Any]], now: datetime) -> list[Phase]:
    """Return a job's phases.

    Args:
        transitions: SecondaryStatusTransitions, as a description has them.
        now: When the last one ends, if it has not.
    """
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
