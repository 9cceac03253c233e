"""The copies of one save from the GPUs: when they are done, and how long training stood still for them.

They run on the streams that training uses. So each comes after what computed its tensor and before what training does
to it next, and the CPU waits for neither. A stream of their own would gain nothing: training may change any tensor as
soon as the state is taken, and so would have to wait for that stream at once. What they cost shows on the GPU alone,
between two events, which are read once the copies are done.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class GpuCopies:
    """Copies to the CPU's memory that are asked for between the making of this and `end`."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        """Begin on the current streams of these GPUs, which may be none."""
        self._streams = {device: torch.cuda.current_stream(device) for device in devices}
        self._began = self._record()
        self._ended: dict[torch.device, torch.cuda.Event] = {}

    def end(self) -> None:
        """Say that all of them have been asked for; does not wait."""
        self._ended = self._record()

    def wait(self) -> float:
        """Return once all of them are done; any thread may call it.

        Returns:
            The seconds for which they held up the GPU that took longest.
        """
        for device, event in self._ended.items():
            with torch.cuda.device(device):  # a thread that never said so would open the first GPU
                event.synchronize()
        return max((self._began[device].elapsed_time(event) for device, event in self._ended.items()), default=0) / 1e3

    def _record(self) -> dict[torch.device, torch.cuda.Event]:
        events: dict[torch.device, torch.cuda.Event] = {}
        for device, stream in self._streams.items():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            events[device] = stream.record_event(event)
        return events
