"""What a Checkpointer tells of its calls: `smddp.training` measures them, for the goodput of a script's own loop."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class SaveObserver(Protocol):
    """Receives a Checkpointer's calls, in the calling thread."""

    def stall(self) -> AbstractContextManager[None]:
        """Return a context around each call that holds up the loop for a save."""

    def loaded(self, step: int) -> None:
        """Note that this run owns the location, and which step it loaded; 0 if none."""

    def saved(self, step: int) -> None:
        """Note that a save of this step has begun, and its copy is made."""


class Unobserved:
    """An observer that ignores all calls."""

    def stall(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def loaded(self, step: int) -> None:
        """Do nothing."""

    def saved(self, step: int) -> None:
        """Do nothing."""
