"""Hydra in a job: hyperparameters become overrides, and the composed config is what the run records.

``import smddp`` does not import it; it needs the package hydra-core, ``pip install smddp[hydra]``.
"""

from smddp.hydra.main import main
from smddp.hydra.overrides import to_overrides

__all__ = ["main", "to_overrides"]
