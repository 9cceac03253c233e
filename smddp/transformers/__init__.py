"""transformers' Trainer on smddp's ranks: who they are, its metrics in the job's lines, a stop that is a checkpoint.

A script of transformers or Accelerate runs in any job as it is where the launcher is torchrun. With these it also finds
its ranks under the others, and ends a stop with a checkpoint and exit code 75.
"""

from smddp.transformers.metrics import MetricsCallback
from smddp.transformers.ranks import export_ranks
from smddp.transformers.stop import StopCallback

__all__ = ["MetricsCallback", "StopCallback", "export_ranks"]
