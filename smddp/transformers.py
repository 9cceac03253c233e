"""transformers' Trainer on smddp's ranks: its ranks, its metrics as metric lines, and a stop with a checkpoint.

A script of transformers or Accelerate runs in any job as it is, if the launcher is torchrun. With these it also finds
its ranks under other launchers, and ends a stop with a checkpoint and exit code 75.

Accelerate reads torchrun's variables. Under srun, SageMaker's MPI and others it finds none, and each process trains
alone on all of the data, without a warning. It does the same on CPUs unless a setting makes it use them.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import TrainerState

from smddp.accelerator import device_kind
from smddp.cluster import Cluster
from smddp.errors import DistributedError
from smddp.job import Job
from smddp.metrics.metric_lines import report
from smddp.process.preemption import Stopped, stop_signal

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainingArguments

__all__ = ["MetricsCallback", "StopCallback", "export_ranks"]

logger = logging.getLogger(__name__)
_NAMES = {"learning_rate": "lr"}
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def export_ranks(cluster: Cluster | None = None, environ: MutableMapping[str, str] | None = None) -> None:
    """Set torchrun's missing variables, for libraries that read no others.

    Call it before you make ``TrainingArguments`` or ``Accelerator``. For one process it sets nothing. If PyTorch sees
    no GPU, it sets ``ACCELERATE_USE_CPU``, too.

    Args:
        cluster: This rank; detected from the environment if None.
        environ: The environment to change; None is this process's own.

    Raises:
        DistributedError: A variable is set already, to another value.

    Examples:
        >>> found = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> export_ranks(Cluster.detect(found), found)
        >>> found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["MASTER_ADDR"]
        ('1', '2', '0', 'algo-1')
    """
    environ = os.environ if environ is None else environ
    cluster = cluster or Cluster.detect(environ)
    if cluster.world_size == 1:
        return
    variables = {
        "RANK": cluster.rank,
        "WORLD_SIZE": cluster.world_size,
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_WORLD_SIZE": cluster.local_world_size,
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": cluster.master_port,
    }
    wrong = {name: value for name, value in variables.items() if environ.get(name) not in (None, "", str(value))}
    if wrong:
        found = ", ".join(f"{name}={environ[name]}" for name in wrong)
        raise DistributedError(
            f"{found} is set, and Accelerate would believe it; by {cluster.launcher} it is "
            f"{', '.join(f'{name}={value}' for name, value in wrong.items())}: unset what is wrong"
        )
    if device_kind() is None:
        variables["ACCELERATE_USE_CPU"] = "true"
    missing = {name: str(value) for name, value in variables.items() if not environ.get(name)}
    environ.update(missing)
    if missing:
        logger.info("set for Accelerate: %s", ", ".join(f"{name}={value}" for name, value in missing.items()))


class MetricsCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not check transformers
    """Log ``step=20 epoch=1/3 loss=0.31 lr=0.0004 grad_norm=1.2`` for each of the Trainer's logs, on rank 0.

    The Estimator's metric definitions match these names. transformers' other names, such as ``eval_loss``, are
    unchanged: give the Estimator definitions of them to see them in SageMaker.

    Examples:
        >>> from transformers import TrainerState
        >>> callback = MetricsCallback()
        >>> callback.on_log(None, TrainerState(epoch=0.5), None, logs={"loss": 0.31})
    """

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **_: Any) -> None:
        """Log a metric line."""
        del args, control
        numbers = {_NAMES.get(name, name): value for name, value in logs.items() if isinstance(value, int | float)}
        numbers.pop("epoch", None)  # a fraction; each line begins with the epoch under way
        if state.is_world_process_zero and numbers:
            under_way = max(math.ceil(state.epoch or 0), 1) - 1
            report(state.global_step, under_way, numbers, epochs=state.num_train_epochs or None)


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
            raise ValueError("save_only_model=True leaves nothing to resume from after a stop: set it to False")
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
