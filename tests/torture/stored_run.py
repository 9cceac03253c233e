"""A run that does with a directory what a Checkpointer does, in one thread, and says what it may rely on.

Every tensor of a state is a function of the step and of the life that saved it: mixed or old bytes are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smddp.checkpoint.manifest import Manifest
from smddp.checkpoint.reader import list_checkpoints, read_newest
from smddp.checkpoint.retention import Pruner, Retention
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from tests.smddp.checkpoint.by_hand import RUN, write_checkpoint

KEEP = Retention(last=2, best=1, metric="score", every=40)


class StoredRun:
    """One life of a run."""

    def __init__(self, root: Path, *, life: int = 0, files: FileSystem | None = None, keep: Retention = KEEP) -> None:
        """Begin a life.

        Args:
            root: where the checkpoints are.
            life: the number of the life, by which its attempts differ from those of others.
            files: the file system.
            keep: which checkpoints stay.
        """
        self.store = DirectoryStore(root, files=files)
        self._pruner = Pruner(self.store, keep)
        self._life = life
        self._saves = 0

    def save(self, step: int, *, on_durable: Callable[[], None] = lambda: None) -> None:
        """Save a step, in place of what stands there, and prune."""
        self._saves += 1
        attempt = 1000 * self._life + self._saves
        standing = self.store.read_manifest(step)
        write_checkpoint(
            self.store, step, state_of(step, self._life), attempt=attempt, writers=2, metrics={"score": score_of(step)}
        )
        on_durable()
        if standing is not None:
            self.store.discard(step, Manifest.from_json(standing).directory)
        self._pruner.prune(step)

    def give_up(self, step: int) -> None:
        """Begin to save a step, fail, and take the attempt back."""
        self._saves += 1
        directory = f"{RUN}-{1000 * self._life + self._saves:04}"
        self.store.write(step, directory, "state.json", [memoryview(b"{}")])
        self.store.discard(step, directory)


def score_of(step: int) -> float:
    """Give the metric at a step: step 20 is the best."""
    return -abs(step - 20.0)


def state_of(step: int, life: int) -> dict[str, Any]:
    """Give the state at a step."""
    number = 1000.0 * step + life
    return {
        "model": {"weight": torch.full((60,), number), "bias": torch.full((3,), number)},
        "optimizer": {"step": step, "moments": [torch.full((60,), -number)]},
    }


def loaded_step(root: Path) -> int | None:
    """Load the newest checkpoint, check that it is of one piece, and give its step."""
    loaded = read_newest(DirectoryStore(root))
    if loaded is None:
        return None
    step = loaded.manifest.step
    number = float(loaded.tensors["model"]["weight"][0])
    expected = state_of(step, int(number - 1000 * step))
    for part in expected:
        assert repr(loaded.unflatten(part)) == repr(expected[part]), f"{part} of step {step} is of two saves"
    return step


def untrustworthy(root: Path) -> list[str]:
    """Say which checkpoints look finished and are not valid."""
    wrong = [info for info in list_checkpoints(root) if info.status not in ("valid", "incomplete")]
    return [f"step {info.step} is {info.status}: {info.reason}" for info in wrong]
