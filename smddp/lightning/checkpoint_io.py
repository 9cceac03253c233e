"""Lightning's checkpoints in smddp's format: damaged ones are refused, and nothing is unpickled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from smddp.checkpoint import Checkpointer, Retention, list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError

_PART = "lightning"
_ONE = Retention(last=1)


class VerifiedCheckpointIO(CheckpointIO):  # type: ignore[misc]  # mypy does not check Lightning
    """Save each checkpoint as a directory, for ``Trainer(plugins=[VerifiedCheckpointIO()])``.

    ``smddp.Checkpointer`` writes a checkpoint completely or not at all, and verifies every byte when it reads one. A
    checkpoint may contain tensors, numbers, texts, dicts, lists and tuples. A callback or module that saves anything
    else, which Lightning would pickle, is refused by name.

    Examples:
        >>> import tempfile, torch
        >>> io, path = VerifiedCheckpointIO(), tempfile.mkdtemp() + "/last.ckpt"
        >>> io.save_checkpoint({"global_step": 3, "state_dict": {"weight": torch.ones(2)}}, path)
        >>> io.load_checkpoint(path)["state_dict"]["weight"]
        tensor([1., 1.])
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replace the checkpoint at the path; Lightning calls this on rank 0 alone.

        Raises:
            CheckpointError: The checkpoint contains an unsupported value, or the path can't be written.
            TypeError: ``storage_options`` is not None.
        """
        if storage_options is not None:
            raise TypeError(f"storage_options={storage_options!r}: there are none; leave them out")
        step = int(checkpoint.get("global_step", 0))
        earlier = open_store(path).steps() if Path(path).is_dir() else []
        if any(each > step for each in earlier):
            self.remove_checkpoint(path)  # of another training: its higher step would stay the newest for ever
        with Checkpointer(path, {_PART: _Given(checkpoint)}, keep=_ONE, share="alone") as checkpointer:
            if step in earlier:  # Checkpointer replaces a step only after loading it
                drawn = capture_random_state()
                checkpointer.load()
                restore_random_state([drawn], rank=0)
            checkpointer.save(step, epoch=int(checkpoint.get("epoch", 0)))
            checkpointer.wait()

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the checkpoint on the CPU; Lightning then moves it. No code is run, whatever ``weights_only`` is.

        Raises:
            CheckpointError: The checkpoint is absent or damaged, or is a file that Lightning wrote itself.
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
        """Remove the checkpoint's directory, if it exists."""
        if Path(path).is_dir():
            shutil.rmtree(path)


def is_checkpoint(path: Path) -> bool:
    """Return whether the path is a file, or a directory with a complete checkpoint."""
    if not path.is_dir():
        return path.exists()
    return any(found.status != "incomplete" for found in list_checkpoints(path, deep=False))


class _Given:
    """A state to save, which loading does not change."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save."""
        return self._state

    def load_state_dict(self, state: Any, /) -> None:
        """Ignore the loaded state: it is only replaced."""
