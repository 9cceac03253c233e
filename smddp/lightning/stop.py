"""Stop a Lightning training: all ranks after the same batch, with a checkpoint, and exit code 75."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from smddp.job import Job
from smddp.lightning.checkpoint_io import is_checkpoint
from smddp.process.preemption import Stopped, stop_signal

if TYPE_CHECKING:
    from pathlib import Path


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
