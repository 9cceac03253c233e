"""Lightning on smddp's ranks: ranks under every launcher, a stop with a checkpoint, and verified checkpoints.

Lightning's Trainer runs in any job as it is. With these classes it also finds its ranks under every launcher that smddp
supports, ends a stop with a checkpoint and exit code 75, and refuses a checkpoint that is torn or changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch.callbacks import Callback

from smddp.checkpoint import Checkpointer, Retention, list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.checkpoint.stores import open_store
from smddp.cluster import Cluster
from smddp.errors import CheckpointError, DistributedError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal

__all__ = ["SmddpEnvironment", "StopCallback", "VerifiedCheckpointIO"]

_PART = "lightning"
_ONE = Retention(last=1)


class SmddpEnvironment(ClusterEnvironment):  # type: ignore[misc]  # mypy does not check Lightning
    """The ranks of torchrun, mpirun, Slurm, OpenPAI or SageMaker, for ``Trainer(plugins=[SmddpEnvironment()])``.

    Lightning starts no processes with it, because the launcher has started them.

    Args:
        cluster: This rank; detected from the environment if None.

    Examples:
        >>> environment = SmddpEnvironment()
        >>> environment.world_size()
        1
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self._cluster = cluster or Cluster.detect()

    @property
    def creates_processes_externally(self) -> bool:
        """True: a launcher has started this process."""
        return True

    @property
    def main_address(self) -> str:
        """The address of rank 0's host."""
        return self._cluster.master_addr

    @property
    def main_port(self) -> int:
        """The port of rank 0."""
        return self._cluster.master_port

    @staticmethod
    def detect() -> bool:
        """Return whether a launcher has started this process."""
        return Cluster.detect().launcher != "single"

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._cluster.world_size

    def set_world_size(self, size: int) -> None:
        """Check Lightning's number of ranks; change nothing."""
        _check("ranks", size, self._cluster.world_size)

    def global_rank(self) -> int:
        """Return this rank's number among all ranks."""
        return self._cluster.rank

    def set_global_rank(self, rank: int) -> None:
        """Check Lightning's number of this rank; change nothing."""
        _check("as this one's rank", rank, self._cluster.rank)

    def local_rank(self) -> int:
        """Return this rank's number on its host."""
        return self._cluster.local_rank

    def node_rank(self) -> int:
        """Return the number of this host."""
        return self._cluster.node_rank

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the Trainer's ``devices`` and ``num_nodes``.

        Raises:
            DistributedError: They differ from the launcher's ranks and hosts.
        """
        _check("devices a node", num_devices, self._cluster.local_world_size)
        _check("nodes", num_nodes, self._cluster.node_count)


def _check(what: str, given: int, here: int) -> None:
    if given != here:
        raise DistributedError(
            f"Lightning counts {given} {what}, and the launcher has {here}: give its Trainer devices= the processes of "
            "each node and num_nodes= the nodes, job.cluster.local_world_size and job.cluster.node_count"
        )


class StopCallback(Callback):  # type: ignore[misc]  # mypy does not check Lightning
    """Save and end when the job is told to stop; for scripts that run under ``smddp.run``.

    The ranks agree on an optimizer step. After it Lightning saves, and the job ends with exit code 75. Resume from the
    file in the next attempt: ``trainer.fit(model, ckpt_path=stop.resume_from)``. A module with manual optimization may
    be stopped after any batch: gradients that it accumulates over several batches are lost.

    Args:
        job: The job, from ``smddp.run``.
        name: The name of the checkpoint in the job's checkpoint directory.
    """

    def __init__(self, job: Job, name: str = "stopped.ckpt") -> None:
        self._job = job
        self._file = job.checkpoint_dir / name
        self._step = 0

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint of an earlier stop, or None."""
        return self._file if is_checkpoint(self._file) else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take SIGTERM back from Lightning: its handler broadcasts, and ranks at different batches would hang."""
        del pl_module
        self._step = trainer.global_step
        stop_signal.watch_again()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Replace the checkpoint of an earlier stop by a final one, so that another run has nothing left to train."""
        del pl_module
        if self.resume_from is not None:
            trainer.save_checkpoint(self._file)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Ask all ranks after an optimizer step, and stop if they agree.

        Raises:
            Stopped: The checkpoint is saved.
        """
        # Lightning saves no gradients: a stop within an accumulation window would lose those of its micro-batches.
        accumulates = pl_module.automatic_optimization and trainer.global_step == self._step
        self._step = trainer.global_step
        if not accumulates and self._job.stopping:
            trainer.save_checkpoint(self._file)  # all ranks call it; the file exists when it returns
            raise Stopped


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
