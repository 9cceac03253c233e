"""The statistics of a metric's values: of all, which the job's record keeps, and of each second, for CloudWatch."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDatumTypeDef
logger = logging.getLogger(__name__)

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"
SEND_SECONDS = 1.0
LARGEST = 2.0**360
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html"""
_MOST_DATA = 1000
"""CloudWatch's limit for one request."""


@dataclass(kw_only=True, slots=True, frozen=True)
class MetricSummary:
    """The last value of a metric, and the statistics of all, in constant memory."""

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


class MetricPublisher:
    """Sends the values of one job's metrics to CloudWatch, under AWS's names; `add` never waits for CloudWatch.

    Any thread may add values. Those of one second become one datum, whose sum, minimum, maximum and count are exact. A
    program that prints at every step costs at most 40 data a second, because a job has at most 40 metrics.
    """

    def __init__(self, client: CloudWatchClient, job_name: str) -> None:
        self._client = client
        self._job_name = job_name
        # Guards the two below. Taken inside `_sending`, never around it.
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, datetime], _Statistics] = {}
        self._sender: threading.Thread | None = None
        # Held while data are sent, so `flush` also waits for the data that another thread took before.
        self._sending = threading.Lock()

    def add(self, name: str, value: float, found: datetime) -> None:
        """Send a finite value soon; a value beyond `LARGEST`, which CloudWatch refuses, is left out."""
        if abs(value) > LARGEST:
            return
        with self._lock:
            self._waiting.setdefault((name, found.replace(microsecond=0)), _Statistics()).add(value)
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_soon, name=f"metrics {self._job_name}", daemon=True)
                self._sender.start()

    def flush(self) -> None:
        """Return when all values so far are sent; values that CloudWatch refuses are lost, with a warning."""
        with self._sending:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            data = iter([self._datum(name, second, each) for (name, second), each in waiting.items()])
            while batch := list(itertools.islice(data, _MOST_DATA)):
                self._send(batch)

    def _send_soon(self) -> None:
        while True:
            time.sleep(SEND_SECONDS)
            with self._lock:
                if not self._waiting:
                    self._sender = None
                    return
            self.flush()

    def _send(self, batch: Sequence[MetricDatumTypeDef]) -> None:
        try:
            self._client.put_metric_data(Namespace=NAMESPACE, MetricData=batch)
        except Exception:  # of any kind: the thread must go on, for the next values
            logger.warning("%d metric data of %s could not be sent", len(batch), self._job_name, exc_info=True)

    def _datum(self, name: str, second: datetime, statistics: _Statistics) -> MetricDatumTypeDef:
        return {
            "MetricName": name,
            "Dimensions": [{"Name": DIMENSION, "Value": self._job_name}],
            "Timestamp": second,
            "StatisticValues": {
                "SampleCount": statistics.count,
                "Sum": statistics.total,
                "Minimum": statistics.least,
                "Maximum": statistics.largest,
            },
        }


@dataclass(kw_only=True, slots=True)
class _Statistics:
    """The values of one second."""

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    largest: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.largest = min(self.least, value), max(self.largest, value)
