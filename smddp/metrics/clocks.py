"""The clock of a device: note moments without waiting, and read the time between them later.

On a CPU a moment is a time. A GPU runs behind the program that feeds it, so its moments are events in its stream. The
time between two events is the GPU's own, so a wait for data counts only as far as the GPU stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import torch


class Clock(Protocol):
    """The clock of one device. The moments of ``now`` are valid only for the same clock."""

    def now(self) -> Any:
        """Return this moment, without waiting for the device."""

    def is_past(self, moment: Any) -> bool:
        """Return whether the device has reached this moment, without waiting."""

    def wait(self, moment: Any) -> None:
        """Return once the device has reached this moment."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the seconds between two moments that the device has reached."""


class CpuClock:
    """The time of the program itself."""

    def now(self) -> float:
        """Read the time."""
        return time.perf_counter()

    def is_past(self, moment: float) -> bool:  # noqa: ARG002
        """Return True: every moment is past."""
        return True

    def wait(self, moment: float) -> None:
        """Do nothing: every moment is past."""

    def seconds(self, first: float, second: float) -> float:
        """Return the difference."""
        return second - first


class CudaClock:
    """The time of a GPU's work in its current stream. ``make_event`` returns an event like ``torch.cuda.Event``."""

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        self._make_event = make_event or partial(cast("Callable[..., Any]", torch.cuda.Event), enable_timing=True)

    def now(self) -> Any:
        """Record an event in the stream."""
        event = self._make_event()
        event.record()
        return event

    def is_past(self, moment: Any) -> bool:
        """Query the event."""
        return bool(moment.query())

    def wait(self, moment: Any) -> None:
        """Wait for the event."""
        moment.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        """Return the time that the GPU measured."""
        return float(first.elapsed_time(second)) / 1000


def clock_of(device: torch.device) -> Clock:
    """Return the device's clock."""
    return CudaClock() if device.type == "cuda" else CpuClock()
