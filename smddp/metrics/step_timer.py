"""The time of each phase of a step: data, forward, backward, optimizer, checkpoint, and other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from smddp.accelerator import device_module, has_streams
from smddp.metrics.device_use import StepFlops

Batch = TypeVar("Batch")

_CPU = torch.device("cpu")
_PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
_MOST_PENDING = 4096


class StepTimer:
    """Measure the time of each phase of a step; each mark ends a phase. Only ``lap`` waits for the GPU.

    ``Trainer(timing=True)`` uses one. In a loop of your own:

        timer = smddp.StepTimer(device)
        for images, labels in timer.batches(loader):
            loss = cross_entropy(model(images), labels)
            timer.mark("forward")
            loss.backward()
            timer.mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            timer.mark("optimizer")
        print(timer.lap())      # {"time_data": 0.03, "time_forward": 0.3, ...}

    Args:
        device: The device to measure. A GPU is measured by events in its stream.
        flops: A counter for the operations of the first micro-batch, which ends with the mark ``"backward"``.
        clock: A clock to use instead of the device's.
    """

    def __init__(
        self, device: torch.device = _CPU, *, flops: StepFlops | None = None, clock: _Clock | None = None
    ) -> None:
        self._clock = clock or _clock_of(device)
        self._flops = flops
        self._last: Any = None  # the moment of the last mark; None while the timer is paused
        self._pending: list[tuple[str, Any, Any]] = []
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._micro_batches = 0

    def mark(self, phase: str) -> None:
        """End a phase: add the time since the last mark to it.

        Args:
            phase: ``"data"``, ``"forward"``, ``"backward"``, ``"optimizer"``, ``"checkpoint"``, ``"other"``, or a name
                of your own.
        """
        now = self._clock.now()
        if phase == "backward":
            self._micro_batches += 1
            if self._flops is not None:
                self._flops.end_micro_batch()
        if self._last is not None:
            self._pending.append((phase, self._last, now))
            if len(self._pending) >= _MOST_PENDING:
                self._settle()
        self._last = now

    def pause(self) -> None:
        """Ignore the time until the next mark, such as an evaluation between two epochs."""
        self._last = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader.

        The wait for a batch counts as ``data``, and the loop's work after its last mark as ``other``.
        """
        self._last = self._clock.now()
        try:
            for batch in loader:
                self.mark("data")
                if self._flops is not None:
                    self._flops.begin_micro_batch()
                yield batch
                self.mark("other")
        finally:
            if self._flops is not None:
                self._flops.give_up_micro_batch()
            self.pause()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of this context to a phase, and the time since the last mark to ``other``."""
        was_paused = self._last is None
        self.mark("other")
        try:
            yield
        finally:
            self.mark(name)
            if was_paused:
                self.pause()

    def lap(self) -> dict[str, float]:
        """Return each phase's share of the time since the last lap, and reset the timer. Waits for the GPU.

        Returns:
            ``time_data``, ``time_forward`` and so on, with a sum of 1. If operations were counted, also ``tflops``
            (10¹² operations a second on this device), and ``mfu`` if the device's peak is known. Empty if no time was
            measured.
        """
        if self._pending:
            self._clock.wait(self._pending[-1][2])
        self._settle()
        assert not self._pending
        seconds, self._seconds = self._seconds, dict.fromkeys(_PHASES, 0.0)
        micro_batches, self._micro_batches = self._micro_batches, 0
        total = sum(seconds.values())
        if not total:
            return {}
        shares = {f"time_{phase}": spent / total for phase, spent in seconds.items()}
        return shares | ({} if self._flops is None else self._flops.rates(micro_batches / total))

    def _settle(self) -> None:
        """Add up the pending phases that the device has finished."""
        done = 0
        for phase, first, second in self._pending:
            if not self._clock.is_past(second):
                break
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock.seconds(first, second)
            done += 1
        del self._pending[:done]


# The clock of a device: note moments without waiting, and read the time between them later.
#
# On a CPU a moment is a time. A GPU runs behind the program that feeds it, so its moments are events in its stream. The
# time between two events is the GPU's own, so a wait for data counts only as far as the GPU stood still.
class _Clock(Protocol):
    """The clock of one device. The moments of ``now`` are valid only for the same clock."""

    def now(self) -> Any:
        """Return this moment, without waiting for the device."""

    def is_past(self, moment: Any) -> bool:
        """Return whether the device has reached this moment, without waiting."""

    def wait(self, moment: Any) -> None:
        """Return once the device has reached this moment."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the seconds between two moments that the device has reached."""


class _CpuClock:
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
        """Return the seconds between two moments."""
        return second - first


class DeviceClock:
    """The time of a device's work in its current stream. ``make_event`` returns an event like ``torch.cuda.Event``."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event

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


def _clock_of(device: torch.device) -> _Clock:
    """Return the device's clock."""
    if not has_streams(device):
        return _CpuClock()
    return DeviceClock(partial(device_module(device.type).Event, enable_timing=True))
