"""smddp: the training side, which scripts import in a SageMaker container or anywhere else.

The public names load on first use, so ``import smddp`` is fast: it imports neither torch nor boto3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from smddp._version import __version__

if TYPE_CHECKING:
    from smddp.checkpoint import Checkpointer as Checkpointer
    from smddp.checkpoint import Retention as Retention
    from smddp.checkpoint.convert.weights import load_weights as load_weights
    from smddp.cluster import Cluster as Cluster
    from smddp.data import ElasticSampler as ElasticSampler
    from smddp.data import fingerprint as fingerprint
    from smddp.data.pipes import PipeDataset as PipeDataset
    from smddp.data.shards import ShardedDataset as ShardedDataset
    from smddp.distributed import DDPOptions as DDPOptions
    from smddp.distributed import Sharded as Sharded
    from smddp.distributed import join as join
    from smddp.distributed import leave as leave
    from smddp.job import Job as Job
    from smddp.metrics import Profile as Profile
    from smddp.metrics import RunningMean as RunningMean
    from smddp.metrics import StepTimer as StepTimer
    from smddp.process.preemption import Stopped as Stopped
    from smddp.training import CheckpointPolicy as CheckpointPolicy
    from smddp.training import EarlyStopping as EarlyStopping
    from smddp.training import Precision as Precision
    from smddp.training import Trainer as Trainer
    from smddp.training import run as run
    from smddp.training import seed_everything as seed_everything
    from smddp.training import warmup_cosine as warmup_cosine
    from smddp.watch import Watch as Watch

_HOMES = {
    "CheckpointPolicy": "smddp.training",
    "Checkpointer": "smddp.checkpoint",
    "Cluster": "smddp.cluster",
    "DDPOptions": "smddp.distributed",
    "EarlyStopping": "smddp.training",
    "ElasticSampler": "smddp.data",
    "Job": "smddp.job",
    "PipeDataset": "smddp.data.pipes",
    "Precision": "smddp.training",
    "Profile": "smddp.metrics",
    "Retention": "smddp.checkpoint",
    "RunningMean": "smddp.metrics",
    "Sharded": "smddp.distributed",
    "ShardedDataset": "smddp.data.shards",
    "StepTimer": "smddp.metrics",
    "Stopped": "smddp.process.preemption",
    "Trainer": "smddp.training",
    "Watch": "smddp.watch",
    "fingerprint": "smddp.data.fingerprint",
    "join": "smddp.distributed",
    "leave": "smddp.distributed",
    "load_weights": "smddp.checkpoint.convert.weights",
    "run": "smddp.training",
    "seed_everything": "smddp.training",
    "warmup_cosine": "smddp.training",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smddp' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
