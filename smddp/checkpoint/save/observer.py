"""What a Checkpointer tells of its calls: `smddp.training` measures them, for the goodput of a script's own loop."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class SaveObserver(Protocol):
    """Hears of a Checkpointer's calls, in the thread that makes them."""

    def stall(self) -> AbstractContextManager[None]:
        """Return a context around each call that holds up the loop for a save."""

    def loaded(self, step: int) -> None:
        """Note that the location is this run's, and the loaded step, or 0."""

    def saved(self, step: int) -> None:
        """Note that a save of this step has begun, and its copy is made."""


class Unobserved:
    """The observer of a Checkpointer whose owner measures by itself, or that nobody measures."""

    def stall(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def loaded(self, step: int) -> None:
        """Do nothing."""

    def saved(self, step: int) -> None:
        """Do nothing."""
