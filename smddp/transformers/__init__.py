"""transformers' Trainer on smddp's ranks: its ranks, its metrics as metric lines, and a stop with a checkpoint.

A script of transformers or Accelerate runs in any job as it is, if the launcher is torchrun. With these it also finds
its ranks under other launchers, and ends a stop with a checkpoint and exit code 75.
"""

from smddp.transformers.metrics import MetricsCallback
from smddp.transformers.ranks import export_ranks
from smddp.transformers.stop import StopCallback

__all__ = ["MetricsCallback", "StopCallback", "export_ranks"]
