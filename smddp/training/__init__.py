"""The training side: ``run`` around a script, and the ``Trainer`` around model, data and checkpoints."""

from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.early_stopping import EarlyStopping
from smddp.training.precision import Precision
from smddp.training.random_state import seed_everything
from smddp.training.run import run
from smddp.training.trainer import Trainer
from smddp.training.warmup_cosine import warmup_cosine

__all__ = ["CheckpointPolicy", "EarlyStopping", "Precision", "Trainer", "run", "seed_everything", "warmup_cosine"]
