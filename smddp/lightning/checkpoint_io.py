"""Lightning's checkpoints as verified ones: what was torn or changed is refused, and nothing is unpickled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from smddp.checkpoint import Checkpointer, Retention, list_checkpoints
from smddp.checkpoint.restore import rng
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError

_PART = "lightning"
_ONE = Retention(last=1)


class VerifiedCheckpointIO(CheckpointIO):  # type: ignore[misc]  # Lightning is not looked at by mypy
    """Keeps each checkpoint in a directory of its path, for ``Trainer(plugins=[VerifiedCheckpointIO()])``.

    What ``smddp.Checkpointer`` writes is there whole or not at all, and every byte is verified when it is read. A
    checkpoint holds tensors, numbers, texts, dicts, lists and tuples: a callback or a module that saves anything else,
    which Lightning would pickle, is refused by name.

    Examples:
        >>> import tempfile, torch
        >>> io, path = VerifiedCheckpointIO(), tempfile.mkdtemp() + "/last.ckpt"
        >>> io.save_checkpoint({"global_step": 3, "state_dict": {"weight": torch.ones(2)}}, path)
        >>> io.load_checkpoint(path)["state_dict"]["weight"]
        tensor([1., 1.])
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replace what lies at the path; Lightning calls it on rank 0 alone.

        Raises:
            CheckpointError: It holds what cannot be saved, or the place cannot be written.
            TypeError: There are storage options.
        """
        if storage_options is not None:
            raise TypeError(f"storage_options={storage_options!r}: there are none; leave them out")
        step = int(checkpoint.get("global_step", 0))
        earlier = open_store(path).steps() if Path(path).is_dir() else []
        if any(each > step for each in earlier):
            self.remove_checkpoint(path)  # of another training: by its steps it would count as the newest for ever
        with Checkpointer(path, {_PART: _Given(checkpoint)}, keep=_ONE, share="alone") as checkpointer:
            if step in earlier:  # what was not loaded may not be replaced
                drawn = rng.capture()
                checkpointer.load()
                rng.restore([drawn], rank=0)
            checkpointer.save(step, epoch=int(checkpoint.get("epoch", 0)))
            checkpointer.wait()

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read it on the CPU, from where Lightning moves it; ``weights_only`` or not, no code is run.

        Raises:
            CheckpointError: There is none, it is damaged, or it is a file of Lightning's own.
        """
        del map_location, weights_only
        if Path(path).is_file():
            raise CheckpointError(
                f"{path} is a file of Lightning's own, of which no byte can be verified: load it once without "
                "VerifiedCheckpointIO, and save it with it"
            )
        loaded = read_newest(open_store(path), [_PART])
        if loaded is None:
            raise CheckpointError(f"there is no checkpoint in {path}, or its save was cut off")
        checkpoint: dict[str, Any] = loaded.unflatten(_PART)
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove the directory, if it is there."""
        if Path(path).is_dir():
            shutil.rmtree(path)


def is_checkpoint(path: Path) -> bool:
    """Return whether there is a file, or a directory with a checkpoint whose save was not cut off."""
    if not path.is_dir():
        return path.exists()
    return any(found.status != "incomplete" for found in list_checkpoints(path, deep=False))


class _Given:
    """A state that is there, and only to be saved."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Give it."""
        return self._state

    def load_state_dict(self, state: Any, /) -> None:
        """Keep what is to be saved: what was there is only to be replaced."""
