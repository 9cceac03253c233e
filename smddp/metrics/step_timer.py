"""Where the time of a step goes: data, forward, backward, optimizer, checkpoint, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from smddp.metrics.clocks import Clock, clock_of
from smddp.metrics.step_flops import StepFlops

Batch = TypeVar("Batch")

_CPU = torch.device("cpu")
_PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
_MOST_PENDING = 4096


class StepTimer:
    """Counts the time between marks to the phase that each mark ends; nothing waits for the GPU but ``lap``.

    ``Trainer(timing=True)`` has one. In a loop of your own::

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
        device: Whose time counts: a GPU's is measured by events in its stream.
        flops: Counts the operations of the first micro-batch, which ends with the mark ``"backward"``.
        clock: Another clock than the device's.
    """

    def __init__(
        self, device: torch.device = _CPU, *, flops: StepFlops | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock or clock_of(device)
        self._flops = flops
        self._last: Any = None  # the moment of the last mark; None: time does not count
        self._pending: list[tuple[str, Any, Any]] = []
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._micro_batches = 0

    def mark(self, phase: str) -> None:
        """End a phase: the time since the last mark was spent on it.

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
        """Let the time until the next mark count for nothing, such as that of an evaluation between two epochs."""
        self._last = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader.

        What the loop waits for them is ``data``, and what it does after its last mark ``other``.
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
        """Count what is done within to a phase, and what was done since the last mark to ``other``."""
        was_paused = self._last is None
        self.mark("other")
        try:
            yield
        finally:
            self.mark(name)
            if was_paused:
                self.pause()

    def lap(self) -> dict[str, float]:
        """Return the shares of the time since the last lap, and begin anew; wait until the GPU has come this far.

        Returns:
            ``time_data``, ``time_forward`` and so on, whose sum is 1; with ``flops``, if they could be counted,
            ``tflops`` (10¹² operations a second on this device), and ``mfu`` where its peak is known. Nothing, if no
            time was counted.
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
        """Add up what is past."""
        done = 0
        for phase, first, second in self._pending:
            if not self._clock.is_past(second):
                break
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock.seconds(first, second)
            done += 1
        del self._pending[:done]
