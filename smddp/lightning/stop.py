"""A stop of a Lightning training: all ranks at one batch, with a checkpoint, and exit code 75."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from smddp.job import Job
from smddp.lightning.checkpoint_io import is_checkpoint
from smddp.process.preemption import Stopped, stop_signal

if TYPE_CHECKING:
    from pathlib import Path


class StopCallback(Callback):  # type: ignore[misc]  # Lightning is not looked at by mypy
    """Saves and ends when the job is told to stop; for scripts that run under ``smddp.run``.

    The ranks agree on an optimizer step; after it Lightning saves, and the job ends with exit code 75. Give the file to
    the next attempt: ``trainer.fit(model, ckpt_path=stop.resume_from)``. A module that optimizes manually is stopped
    after any batch: gradients that it accumulates over several batches are lost.

    Args:
        job: What ``smddp.run`` gave to main.
        name: Of the checkpoint, in the job's checkpoint directory.
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
        """Take SIGTERM back from Lightning, whose handler broadcasts within it: ranks at other batches would hang."""
        del pl_module
        self._step = trainer.global_step
        stop_signal.watch_again()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Replace the checkpoint of an earlier stop by one of the end: another run has nothing left to train."""
        del pl_module
        if self.resume_from is not None:
            trainer.save_checkpoint(self._file)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Ask all ranks after an optimizer step, and stop if they agree.

        Raises:
            Stopped: The checkpoint is there.
        """
        # Lightning saves no gradients: within an accumulation window those of its micro-batches would be lost.
        accumulates = pl_module.automatic_optimization and trainer.global_step == self._step
        self._step = trainer.global_step
        if not accumulates and self._job.stopping:
            trainer.save_checkpoint(self._file)  # all ranks call it; the file is there when it returns
            raise Stopped
