"""The runs of this process whose steps may not be saved yet, in one place: ``open_runs``.

A process has one script, and a stop or an end of it concerns all its runs. Each run is here twice, because two
lifetimes meet: its ``RunCheckpoints`` live as long as their trainer, from before the first step; its ``RunSaves`` are
kept until the script ends under ``smddp.run``, also when the trainer is garbage by then: the last save is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol
from weakref import WeakSet


class Run(Protocol):
    """A run that may take steps: ``RunCheckpoints``."""

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""

    @property
    def has_started(self) -> bool:
        """Whether it has a place to save in."""

    @property
    def saves_to(self) -> str | None:
        """That place, until it is stopped or ends."""

    @property
    def is_durable(self) -> bool:
        """Whether no step that was taken would be lost if the process ended now; any thread may ask."""

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained ones are in no checkpoint."""

    def check_unsaved(self) -> None:
        """See that this moment may be saved."""

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable."""


class Saves(AbstractContextManager[Any], Protocol):
    """The saves of a run, which end when the context is left: ``RunSaves``."""

    place: str
    is_open: bool
    was_stopped: bool

    @property
    def unsaved_steps(self) -> int:
        """How many steps were taken since the last save that was begun."""


class OpenRuns:
    """The runs of a process, and what is to end with its script."""

    def __init__(self) -> None:
        self._trained: WeakSet[Run] = WeakSet()
        self._saved: WeakSet[Saves] = WeakSet()
        self._script: ExitStack | None = None

    @contextmanager
    def until_script_ends(self, stack: ExitStack) -> Iterator[None]:
        """Let the saves of every run that begins meanwhile end when the stack is closed.

        Closed after success, it waits until the last checkpoint is durable; with an exception, ten seconds.
        """
        self._script = stack
        try:
            yield
        finally:
            self._script = None

    def end_with_script(self, ending: AbstractContextManager[object]) -> bool:
        """Leave the context when the script ends under ``smddp.run``; return False if it does not run there."""
        if self._script is None:
            return False
        self._script.enter_context(ending)
        return True

    def add(self, run: Run) -> None:
        """Count a run among those that may take steps."""
        self._trained.add(run)

    def discard(self, run: Run) -> None:
        """Forget a run whose steps are another one's to save."""
        self._trained.discard(run)

    def add_saves(self, saves: Saves) -> None:
        """Count the saves of a run, which go on in the stead of those that a dropped trainer made in the same place."""
        for dropped in self.open_saves():
            if dropped.place == saves.place:
                dropped.is_open = False
        self._saved.add(saves)
        self.end_with_script(saves)

    def open_saves(self) -> list[Saves]:
        """Return the saves that may go on, also those of a trainer that the script has dropped."""
        return [saves for saves in self._saved if saves.is_open]

    def that_save(self) -> list[Run]:
        """Return the runs that save somewhere, in an order that is the same on all ranks."""
        return sorted((run for run in self._trained if run.saves_to is not None), key=lambda run: run.saves_to or "")

    def all_work_is_durable(self) -> bool:
        """Tell whether runs took steps, and none would be lost if the process ended now; any thread may ask."""
        runs = list(self._trained)
        return any(run.steps for run in runs) and all(run.is_durable for run in runs)

    def steps_in_no_checkpoint(self) -> int:
        """Return how many steps would be lost if the process ended now, all saves being durable."""
        unsaved = sum(run.steps for run in list(self._trained) if not run.has_started)
        return unsaved + sum(saves.unsaved_steps for saves in self.open_saves())


open_runs = OpenRuns()
