"""The clock of a device: moments that are noted without waiting, and what lies between them, read later.

On a CPU a moment is a time. On a GPU, which works behind the program that feeds it, a moment is an event in its
stream: what lies between two of them is the GPU's own time, so that a wait for data counts as far as it stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import torch


class Clock(Protocol):
    """Of one device. What ``now`` gives is for the same clock's other methods alone."""

    def now(self) -> Any:
        """Note this moment, without waiting for the device."""

    def is_past(self, moment: Any) -> bool:
        """Return whether the device has come to this moment, without waiting."""

    def wait(self, moment: Any) -> None:
        """Return once the device has."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the seconds between two moments that are past."""


class CpuClock:
    """What the program itself takes."""

    def now(self) -> float:
        """Read the time."""
        return time.perf_counter()

    def is_past(self, moment: float) -> bool:  # noqa: ARG002
        """Return True: every moment that was noted is past."""
        return True

    def wait(self, moment: float) -> None:
        """Do nothing: there is nothing to wait for."""

    def seconds(self, first: float, second: float) -> float:
        """Return the difference."""
        return second - first


class CudaClock:
    """What the GPU takes for the work that was given to its current stream.

    Args:
        make_event: Makes an event with ``record``, ``query``, ``synchronize`` and ``elapsed_time`` (milliseconds).
    """

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        self._make_event = make_event or partial(cast("Callable[..., Any]", torch.cuda.Event), enable_timing=True)

    def now(self) -> Any:
        """Put an event into the stream."""
        event = self._make_event()
        event.record()
        return event

    def is_past(self, moment: Any) -> bool:
        """Ask the event."""
        return bool(moment.query())

    def wait(self, moment: Any) -> None:
        """Wait for the event."""
        moment.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        """Return what the GPU measured."""
        return float(first.elapsed_time(second)) / 1000


def clock_of(device: torch.device) -> Clock:
    """Return the device's clock."""
    return CudaClock() if device.type == "cuda" else CpuClock()
