"""The statistics of all values of one metric, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any


@dataclass(kw_only=True, slots=True, frozen=True)
class MetricSummary:
    """The last value of a metric, and the statistics of all."""

    last: float
    """The value with the latest time."""
    time: datetime
    """The time of the last value."""
    least: float
    most: float
    count: int
    mean: float
    squares: float = 0.0
    """The sum of the squared distances from the mean, by Welford's method, which loses no digits to large values."""

    @classmethod
    def of(cls, value: float, time: datetime) -> MetricSummary:
        """Return the summary of one value."""
        return cls(last=value, time=time, least=value, most=value, count=1, mean=value)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MetricSummary:
        """Return the summary of a `to_json` document, with the time as text."""
        return cls(**{**document, "time": datetime.fromisoformat(document["time"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with the time as a datetime."""
        return asdict(self)

    def added(self, value: float, time: datetime) -> MetricSummary:
        """Return the summary with one more value."""
        count = self.count + 1
        mean = self.mean + (value / count - self.mean / count)  # ``value - self.mean`` may overflow
        is_later = time >= self.time
        return replace(
            self,
            last=value if is_later else self.last,
            time=time if is_later else self.time,
            least=min(self.least, value),
            most=max(self.most, value),
            count=count,
            mean=mean,
            squares=self.squares + (value - self.mean) * (value - mean),
        )

    def describe(self) -> dict[str, Any]:
        """Return the statistics as DescribeTrialComponent shows them.

        StdDev is the population's, not a sample's; it is left out if it overflows.
        """
        deviation = math.sqrt(self.squares / self.count) if math.isfinite(self.squares) else None
        return {
            "TimeStamp": self.time,
            "Max": self.most,
            "Min": self.least,
            "Last": self.last,
            "Count": self.count,
            "Avg": self.mean,
            **({} if deviation is None else {"StdDev": deviation}),
        }
