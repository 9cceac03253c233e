"""Lightning on smddp's ranks: who they are, and a stop that is a checkpoint.

Lightning's Trainer runs in any job as it is. With these two it also finds its ranks under every launcher that smddp
knows, and ends a stop with a checkpoint and exit code 75.
"""

from smddp.lightning.environment import SmddpEnvironment
from smddp.lightning.stop import StopCallback

__all__ = ["SmddpEnvironment", "StopCallback"]
