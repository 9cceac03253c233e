"""The copies of one save from the GPUs to CPU memory: wait for them, and measure how long they stall training.

The copies run on training's current streams. So each copy runs after the kernels that computed its tensor, and before
the next kernels that change it, and the CPU does not wait. A separate stream would gain nothing: training may change
any tensor right after the snapshot, and would have to wait for that stream at once. Two events around the copies
measure their time on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class GpuCopies:
    """The copies to CPU memory that are enqueued between construction and `end`."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        """Record the start on the current streams of these GPUs, if any."""
        self._streams = {device: torch.cuda.current_stream(device) for device in devices}
        self._began = self._record()
        self._ended: dict[torch.device, torch.cuda.Event] = {}

    def end(self) -> None:
        """Record the end, once all copies are enqueued. Does not wait."""
        self._ended = self._record()

    def wait(self) -> float:
        """Wait for all copies, in any thread, and return the seconds that they took on the slowest GPU."""
        for device, event in self._ended.items():
            with torch.cuda.device(device):  # a new thread would open a context on GPU 0
                event.synchronize()
        return max((self._began[device].elapsed_time(event) for device, event in self._ended.items()), default=0) / 1e3

    def _record(self) -> dict[torch.device, torch.cuda.Event]:
        events: dict[torch.device, torch.cuda.Event] = {}
        for device, stream in self._streams.items():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            events[device] = stream.record_event(event)
        return events
