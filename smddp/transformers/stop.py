"""Stop a training by transformers' Trainer: all ranks at the same step, with a checkpoint, and exit code 75."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import TrainerState

from smddp.errors import DistributedError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainingArguments

logger = logging.getLogger(__name__)

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class StopCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not check transformers
    """Save and end when the job is told to stop; for scripts that run under ``smddp.run``.

    The ranks agree on a step. After it the Trainer saves, and the job ends with exit code 75. Let the Trainer save to
    ``output_dir=job.checkpoint_dir``, and resume from the newest checkpoint in the next attempt:
    ``trainer.train(resume_from_checkpoint=stop.resume_from)``.

    Args:
        job: The job, from ``smddp.run``.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stops = False
        self._resumed = self.resume_from is not None

    @property
    def resume_from(self) -> str | None:
        """The newest complete checkpoint, or None.

        ``trainer_state.json`` is the last file that rank 0 writes: a directory without it is incomplete, and skipped
        with a warning. No byte is verified, unlike in a checkpoint of ``smddp.Checkpointer``.
        """
        found = [(int(name[1]), path) for path in _directories(self._job) if (name := _CHECKPOINT.fullmatch(path.name))]
        for _, path in sorted(found, reverse=True):
            if _is_whole(path):
                return str(path)
            logger.warning("passed over %s: its save was cut off, as it has no whole trainer_state.json", path)
        return None

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Check that transformers knows all ranks, and take SIGTERM back from its own handler.

        Raises:
            DistributedError: It knows fewer: each rank would train alone, on all of the data.
            ValueError: A stop's checkpoint could not be resumed or found.
        """
        del state, control
        if args.world_size != self._job.cluster.world_size:
            raise DistributedError(
                f"transformers counts {args.world_size} ranks, and the launcher has {self._job.cluster.world_size}: "
                "call smddp.transformers.export_ranks(job.cluster) before TrainingArguments is made"
            )
        if args.save_only_model:
            raise ValueError("save_only_model=True leaves nothing to go on with after a stop: set it to False")
        if Path(args.output_dir).absolute() != self._job.checkpoint_dir.absolute():
            raise ValueError(
                f"output_dir={args.output_dir!r}, and the next attempt looks in {self._job.checkpoint_dir}: give "
                "TrainingArguments output_dir=job.checkpoint_dir"
            )
        stop_signal.watch_again()  # enable_jit_checkpoint waits 3 s, each rank for itself, and ends with 0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask all ranks, and have the Trainer save if they agree."""
        del args
        self._stops = self._stops or self._job.stopping
        if self._stops:
            control.should_save = True
            control.should_evaluate = False  # the grace is for the checkpoint
        elif self._resumed and state.global_step >= state.max_steps:
            control.should_save = True  # else another run would resume at the stop, and train the rest again

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End if this was the save of a stop.

        Raises:
            Stopped: The checkpoint is saved.
        """
        del args, state, control
        if self._stops:
            raise Stopped


def _directories(job: Job) -> list[Path]:
    return [path for path in job.checkpoint_dir.iterdir() if path.is_dir()] if job.checkpoint_dir.is_dir() else []


def _is_whole(checkpoint: Path) -> bool:
    try:
        TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    except (OSError, ValueError, TypeError):
        return False
    return True
