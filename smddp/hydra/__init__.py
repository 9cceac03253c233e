"""Hydra in a job: hyperparameters become overrides, and the run records the composed config.

``import smddp`` does not import this package. It needs hydra-core: ``pip install smddp[hydra]``.
"""

from smddp.hydra.composed import to_overrides
from smddp.hydra.main import main

__all__ = ["main", "to_overrides"]
