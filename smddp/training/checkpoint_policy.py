"""The policy of a run's checkpoints: when to save, which to keep, which ranks write, what a failure costs.

It only states wishes. `smddp.training.save_schedule` finds the moment to save, and ``smddp.checkpoint`` does the
rest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from smddp.checkpoint import Retention
from smddp.checkpoint.parts.script_options import OnChange
from smddp.job import Job

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """When a trainer saves, and which checkpoints it keeps. Each epoch and each stop end with a checkpoint anyway.

    Examples:
        >>> policy = CheckpointPolicy(every=1000, keep=Retention(last=2, best=1, metric="accuracy"))
        >>> policy.seconds  # or every five minutes, whichever is due first
        300.0
    """

    every: int | Literal["auto"] | None = None
    """Optimizer steps from one checkpoint to the next, or None. ``"auto"`` saves at the interval of least
    cost, by Young's and Daly's formula, from the measured cost of a save and the failure rate of machines."""

    seconds: float | None = 300.0
    """Seconds from one checkpoint to the next by rank 0's clock, or None for no clock: the most work that a sudden loss
    of a machine costs. With ``every="auto"`` it holds only until the first save is measured."""

    keep: Retention = field(default_factory=Retention)
    """Which checkpoints to keep: the last ones, the best ones by a metric, every n-th; by default `Retention`'s last
    three."""

    save_frozen: bool = True
    """False leaves out the frozen weights of a model that is fine-tuned, such as the base model under LoRA, as long as
    they do not change. The script loads them at each start; a resume compares them, and fails if they differ."""

    tolerate_failures: int = 2
    """How many saves in a row may fail because of the storage, each with an error in the log, before training ends."""

    share: Literal["node", "all"] | None = None
    """The ranks that write: the first node's, or all, which must then see the same location. None chooses all for
    S3, and the first node for a directory, which other nodes may not see."""

    sync: Literal["watch", "upload"] = "watch"
    """If SageMaker copies the directory to S3: with ``"watch"``, warn if a checkpoint does not arrive there; with
    ``"upload"``, upload a late checkpoint."""

    on_change: OnChange = "keep"
    """What a resume does if this script's options of optimizers and schedules (learning rate, weight decay, the length
    of a schedule) differ from the checkpoint's: ``"keep"`` the checkpoint's and warn, ``"take"`` this script's, or
    ``"refuse"``."""

    mean_hours_between_failures: float = 1000.0
    """Mean time between failures of one node, for ``every="auto"``; a job on n nodes fails n times as often. 1000 h is
    what Meta measured: jobs on one node of 8 GPUs failed every 47.7 days, jobs on 128 nodes every 7.9 h (Kokolis et
    al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025). Llama 3's 419 failures
    in 54 days on 2048 nodes are one in 6,300 h a node. The interval grows with the square root, so an error of that
    size costs little. An announced interruption, such as a spot instance's, is a stop, not a failure."""

    def __post_init__(self) -> None:
        if self.every != "auto" and self.every is not None and not (type(self.every) is int and self.every > 0):
            raise ValueError(f'every={self.every!r}: give a number of steps from 1, "auto", or None')
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds}: give a time greater than 0, or None for no clock")
        if self.every == "auto" and self.seconds is None:
            raise ValueError('every="auto" needs seconds: when to save first, so that the cost of a save is known')
        if type(self.save_frozen) is not bool:
            raise ValueError(f"save_frozen={self.save_frozen!r}: give True or False")
        if self.tolerate_failures < 0:
            raise ValueError(f"tolerate_failures={self.tolerate_failures}: give 0 to end at the first failure, or more")
        if self.share not in ("node", "all", None):
            raise ValueError(f'share={self.share!r}: give "node", "all", or None to let the place decide')
        if self.sync not in ("watch", "upload"):
            raise ValueError(f'sync={self.sync!r}: give "watch" or "upload"')
        if self.on_change not in get_args(OnChange):
            raise ValueError(f'on_change={self.on_change!r}: give "keep", "take" or "refuse"')
        if not self.mean_hours_between_failures > 0:
            raise ValueError(
                f"mean_hours_between_failures={self.mean_hours_between_failures}: give a time greater than 0"
            )

    def writers(self, job: Job) -> Literal["node", "all"]:
        """Return which ranks write this job's checkpoints."""
        if self.share is not None:
            return self.share
        return "node" if job.checkpoint_location == str(job.checkpoint_dir) else "all"

    def reached_by_all(self, job: Job) -> Job:
        """Return the job for a model of which each host has pieces: the ranks save to the job's place in S3 themselves.

        SageMaker would copy each host's directory there, and no host has a whole checkpoint.
        """
        if self.share is not None or job.cluster.node_count == 1 or not job.checkpoints_are_copied:
            return job
        if job.cluster.is_main:
            logger.info("each host has pieces of the model: the ranks save them to %s", job.checkpoint_s3_uri)
        return replace(job, checkpoints_are_copied=False)

    def seconds_between_failures(self, nodes: int) -> float:
        """Return the expected seconds between failures of a job on this many nodes."""
        return self.mean_hours_between_failures * 3600 / nodes
