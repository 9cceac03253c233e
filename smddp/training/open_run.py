"""A run that has begun: how far it came, and its checkpoints, until its script ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.run_state import Stateful
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.opening import open_store
from smddp.checkpoint.stores.upload_monitor import UploadMonitor
from smddp.job import Job
from smddp.training.checkpoint_policy import CheckpointPolicy

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """The progress of training; part of each checkpoint."""

    steps: int = 0
    """Optimizer steps taken since the very first start; one that fp16's loss scaler skipped counts too."""

    epoch: int = 0
    """The epoch under way, from 0."""

    finished: bool = False
    """Whether the script has ended the training, by ``finish_if``."""

    run: str = ""
    """The id of this run, the same after each resume; empty until the run begins."""

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters."""
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.finished = bool(state.get("finished", False))  # absent in older checkpoints
        self.run = state.get("run", "")  # absent in older checkpoints


class OpenRun:
    """A run that has begun, until its script ends, even after its trainer: its checkpoints, and how far it came.

    As a context it ends the saves: after success once all are durable, with an exception after ten seconds at most.
    """

    def __init__(self, location: str, checkpointer: Checkpointer, progress: Progress, *, logs: bool) -> None:
        self.location = location
        self.checkpointer = checkpointer
        self._progress = progress
        self._logs = logs
        self.is_open = True
        """Whether this run may still save. No other run of this process may save to the same location meanwhile."""
        self.was_stopped = False
        """Whether a stop ended the run, after a checkpoint."""

    @classmethod
    def begin(
        cls,
        job: Job,
        policy: CheckpointPolicy,
        progress: Progress,
        state: Mapping[str, Stateful],
        per_rank: Mapping[str, Stateful],
    ) -> OpenRun:
        """Open the job's checkpoint location; raise CheckpointError on every rank if it can't be written."""
        monitor = None
        if job.checkpoints_are_copied and job.cluster.is_main:
            assert job.checkpoint_s3_uri is not None
            source, target = DirectoryStore(job.checkpoint_dir), open_store(job.checkpoint_s3_uri)
            monitor = UploadMonitor(source, target, take_over=policy.sync == "upload")
        checkpointer = Checkpointer(
            job.checkpoint_location,
            state,
            per_rank=per_rank,
            keep=policy.keep,
            share=policy.writers(job),
            hyperparameters=json.loads(json.dumps(dict(job.hyperparameters)), parse_constant=str),  # no NaN in JSON
            tolerate_failures=policy.tolerate_failures,
            listener=monitor,
        )
        checkpointer.check_writable()
        return cls(job.checkpoint_location, checkpointer, progress, logs=job.cluster.is_main)

    @property
    def unsaved_steps(self) -> int:
        """Steps taken since the newest save began."""
        return self._progress.steps - self.checkpointer.newest[0]

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_open = False
        try:
            if error is None:
                self.checkpointer.finish()
                if self._logs and (lost := self.unsaved_steps) > 0:
                    logger.warning(
                        "the script ended with %d steps in no checkpoint: another run would take them again; call "
                        "trainer.save() after the loop, or after a break out of it",
                        lost,
                    )
        finally:
            self.checkpointer.__exit__(kind, error, traceback)
