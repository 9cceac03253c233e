"""The runs of this process that may have unsaved steps: ``active_runs``.

A process runs one script, and its stop or end concerns all its runs. Each run is registered twice, because two
lifetimes meet: its ``SaveSchedule`` lives as long as the trainer, from before the first step; its ``OpenRun`` lives
until the script ends under ``smddp.run``, even after the trainer, because the last save must become durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from smddp.training.open_run import OpenRun


class Run(Protocol):
    """A run that may take steps: ``SaveSchedule``."""

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""

    @property
    def has_started(self) -> bool:
        """Whether the run has opened the location to save to."""

    @property
    def saves_to(self) -> str | None:
        """The location that the run saves to; None before its start, and after a stop or its end."""

    @property
    def is_durable(self) -> bool:
        """Whether every step is durable, so that none would be lost if the process ended now. Any thread may ask."""

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained weights are in no checkpoint."""

    def check_unsaved(self) -> None:
        """Raise an error if the current state may not be saved."""

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of the current step is durable."""


class ActiveRuns:
    """All runs of a process, and the contexts that end with its script."""

    def __init__(self) -> None:
        # Weak: a trainer that the script drops takes its run along. No lock: the main thread changes the sets, and the
        # thread of a late stop (`StopDeadline`) only copies them.
        self._trained: WeakSet[Run] = WeakSet()
        self._open: WeakSet[OpenRun] = WeakSet()
        self._script: ExitStack | None = None

    @contextmanager
    def until_script_ends(self, stack: ExitStack) -> Iterator[None]:
        """Attach the saves of every run that begins in this context to the stack.

        Closing the stack after success waits until the last checkpoints are durable; with an exception, ten seconds at
        most.
        """
        self._script = stack
        try:
            yield
        finally:
            self._script = None

    def end_with_script(self, ending: AbstractContextManager[object]) -> bool:
        """Leave the context when the script ends under ``smddp.run``; return False outside of it."""
        if self._script is None:
            return False
        self._script.enter_context(ending)
        return True

    def add(self, run: Run) -> None:
        """Register a run that may take steps."""
        self._trained.add(run)

    def discard(self, run: Run) -> None:
        """Forget a run whose steps another run saves."""
        self._trained.discard(run)

    def add_open(self, run: OpenRun) -> None:
        """Register a run that has begun, and close that of a dropped trainer in the same location."""
        for dropped in self.open_runs():
            if dropped.location == run.location:
                dropped.is_open = False
        self._open.add(run)
        self.end_with_script(run)

    def open_runs(self) -> list[OpenRun]:
        """Return the runs that may still save, those of dropped trainers included."""
        return [run for run in self._open if run.is_open]

    def saving_runs(self) -> list[Run]:
        """Return the runs that save, sorted by location: in the same order on all ranks."""
        return sorted((run for run in self._trained if run.saves_to is not None), key=lambda run: run.saves_to or "")

    def all_work_is_durable(self) -> bool:
        """Return whether runs took steps and all of these are durable. Any thread may ask."""
        runs = list(self._trained)
        return any(run.steps for run in runs) and all(run.is_durable for run in runs)

    def steps_in_no_checkpoint(self) -> int:
        """Return how many steps no begun save covers.

        These are lost when the process ends, even if all saves become durable.
        """
        unsaved = sum(run.steps for run in list(self._trained) if not run.has_started)
        return unsaved + sum(run.unsaved_steps for run in self.open_runs())


active_runs = ActiveRuns()
