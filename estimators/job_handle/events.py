"""The events of a training job: changes of its status, lines of its log, values of its metrics."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from estimators.log_reader import LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """The job entered another secondary status, such as Training, Interrupted, Completed."""

    time: datetime
    status: str
    message: str
    """The platform's message; may be empty."""

    @classmethod
    def of(cls, transition: Mapping[str, Any]) -> StatusChange:
        """Convert one of a description's SecondaryStatusTransitions."""
        return cls(
            time=transition["StartTime"], status=transition["Status"], message=transition.get("StatusMessage", "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A value that one of the job's metric definitions found in a line of its log."""

    time: datetime
    host: str
    step: float | None
    """The step in the same line, or None if absent."""
    epoch: float | None
    """The epoch in the same line, or None if absent."""
    metric: str
    """The name in the metric definition."""
    value: float


JobEvent: TypeAlias = StatusChange | LogLine | MetricValue

_KINDS = {StatusChange: "status", LogLine: "line", MetricValue: "metric"}


def as_json(event: JobEvent, job_name: str) -> str:
    """Return an event as a JSON object, with the job's name and the kind of event: status, line or metric."""
    fields = {"job": job_name, "event": _KINDS[type(event)], **dataclasses.asdict(event)}
    return json.dumps(fields, default=lambda time: time.isoformat())
