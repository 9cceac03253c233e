"""The policy of a run's checkpoints: when to save, which to keep, who writes, what a failure costs.

It only says what is wanted. The moment is found by the trainer (``smddp.training.run_checkpoints``), the rest done by
``smddp.checkpoint``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from smddp.checkpoint import Retention
from smddp.checkpoint.restore.script_options import OnChange
from smddp.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """When a trainer saves, and what it keeps. Each epoch ends with a checkpoint anyway, and so does a stop.

    Examples:
        >>> policy = CheckpointPolicy(every=1000, keep=Retention(last=2, best=1, metric="accuracy"))
        >>> policy.seconds  # or every five minutes, whichever is due first
        300.0
    """

    every: int | Literal["auto"] | None = None
    """Optimizer steps from one checkpoint to the next, or None. ``"auto"`` saves as often as costs least, by Young's
    and Daly's formula: from what a save is measured to cost, and how often machines fail."""

    seconds: float | None = 300.0
    """Seconds from one checkpoint to the next by rank 0's clock, or None: what a machine that goes away without a word
    may cost. With ``every="auto"`` it holds until the first save was measured, and is replaced then."""

    keep: Retention = field(default_factory=Retention)
    """Which checkpoints stay: the last ones, the best ones by a metric, every n-th."""

    tolerate_failures: int = 2
    """How many saves in a row may fail for the storage's sake, each with an error in the log, before training ends."""

    share: Literal["node", "all"] | None = None
    """Which ranks write: those of the first node, or all, who must see the same place then. None: all where checkpoints
    are saved to S3, which every rank sees; else the first node's, whose directory may be its own."""

    sync: Literal["watch", "upload"] = "watch"
    """Where SageMaker copies the directory to S3: watch that each checkpoint arrives there, and warn if one does not;
    or upload it then."""

    on_change: OnChange = "keep"
    """Whose options optimizers and schedules have after a resume (learning rate, weight decay, the length of a
    schedule), where this script's are not those of the script that saved: ``"keep"`` the checkpoint's and warn,
    ``"take"`` this script's, or ``"refuse"``."""

    mean_hours_between_failures: float = 1000.0
    """Of one node, for ``every="auto"``; a job on n nodes is taken to fail n times as often. 1000 h is what Meta saw:
    jobs on one node of 8 GPUs failed every 47.7 days, those on 128 every 7.9 h (Kokolis et al., "Revisiting Reliability
    in Large-Scale Machine Learning Research Clusters", HPCA 2025). Llama 3's 419 failures in 54 days on 2048 nodes are
    one in 6,300 h a node; the interval goes with the root, so being wrong by as much costs little. An interruption that
    is announced, as spot instances' is, is a stop, not a failure."""

    def __post_init__(self) -> None:
        if self.every != "auto" and self.every is not None and not (type(self.every) is int and self.every > 0):
            raise ValueError(f'every={self.every!r}: give a number of steps from 1, "auto", or None')
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds}: give a time greater than 0, or None for no clock")
        if self.every == "auto" and self.seconds is None:
            raise ValueError('every="auto" needs seconds: when to save first, so that the cost of a save is known')
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

    def seconds_between_failures(self, nodes: int) -> float:
        """Return the expected seconds between failures of a job on so many nodes."""
        return self.mean_hours_between_failures * 3600 / nodes
