"""A small run that saves through a Checkpointer into a directory, over a file system that may be watched or may fail.

All of its state is a function of the step and of the life that saved it, so that mixed or old bytes are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from smddp.checkpoint import Checkpointer, Retention, list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.checkpoint.stores.store import CommitListener
from tests.torture.layout import divided

KEEP = Retention(last=2, best=1, metric="score", every=40)


class Part:
    """A part of the state: all of it follows from a number. With a mesh, its tensors are divided among the ranks."""

    def __init__(self, size: int, mesh: DeviceMesh | None = None) -> None:
        self.size = size
        self.number = 0
        self._mesh = mesh

    def state_dict(self) -> dict[str, Any]:
        return self._state(self._mesh)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]
        assert repr(state) == repr(self._state(None)), f"the state of {self.number} is of two saves"

    def _state(self, mesh: DeviceMesh | None) -> dict[str, Any]:
        values = torch.full((self.size,), float(self.number), dtype=torch.float64)
        moments = [divided(-values, mesh), divided(values[:3].clone(), mesh)]
        return {"number": self.number, "weight": divided(values, mesh), "moments": moments}


class StoredRun(CommitListener):
    """One life of a run."""

    def __init__(
        self,
        root: Path,
        *,
        life: int = 0,
        files: FileSystem | None = None,
        on_durable: Callable[[int], None] = lambda step: None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        """Begin a life where the newest checkpoint is.

        Args:
            root: where the checkpoints are.
            life: the number of the life.
            files: the file system.
            on_durable: told the step of each checkpoint as soon as it is durable.
            mesh: of the ranks that divide the state, each of which is such a life; None: each rank has all of it.
        """
        self.store = DirectoryStore(root, files=files)
        self._life = life
        self._on_durable = on_durable
        self._parts = {"model": Part(60, mesh), "optimizer": Part(40, mesh)}
        self._checkpointer = Checkpointer(root, self._parts, keep=KEEP, listener=self)
        self._checkpointer._store = self.store
        found = self._checkpointer.load()
        self.step = 0 if found is None else found.step

    def save(self, step: int) -> None:
        """Save, and return when it is durable and what need not stay is removed."""
        for part in self._parts.values():
            part.number = 1000 * step + self._life
        self._checkpointer.save(step, metrics={"score": score_of(step)})
        self._checkpointer.wait()
        self.step = step

    def expect(self, step: int, manifest: bytes) -> None:
        """What the Checkpointer calls when a step is durable."""
        self._on_durable(step)


def score_of(step: int) -> float:
    """Give the metric at a step: step 20 is the best."""
    return -abs(step - 20.0)


def loaded_step(root: Path) -> int:
    """Load the newest checkpoint, see that it is of one piece, and give its step; 0 if absent."""
    loaded = read_newest(DirectoryStore(root))
    if loaded is None:
        return 0
    parts = {"model": Part(60), "optimizer": Part(40)}
    for name, part in parts.items():
        part.load_state_dict(loaded.unflatten(name))
    numbers = {part.number for part in parts.values()}
    assert {number // 1000 for number in numbers} == {loaded.manifest.step}
    assert len(numbers) == 1, "its parts are of two lives"
    return loaded.manifest.step


def untrustworthy(root: Path) -> list[str]:
    """Say which checkpoints look finished and are not valid."""
    wrong = [info for info in list_checkpoints(root) if info.status not in ("valid", "incomplete")]
    return [f"step {info.step} is {info.status}: {info.reason}" for info in wrong]
