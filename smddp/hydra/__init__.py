"""Hydra in a job: hyperparameters become overrides, and the run records the composed config.

``import smddp`` does not import this package. It needs hydra-core: ``pip install smddp[hydra]``.
"""

from smddp.hydra.main import main
from smddp.hydra.overrides import to_overrides

__all__ = ["main", "to_overrides"]
