"""Lightning on smddp's ranks: who they are, a stop that is a checkpoint, and checkpoints that are verified.

Lightning's Trainer runs in any job as it is. With these it also finds its ranks under every launcher that smddp
knows, ends a stop with a checkpoint and exit code 75, and refuses a checkpoint that was torn or changed.
"""

from smddp.lightning.checkpoint_io import VerifiedCheckpointIO
from smddp.lightning.environment import SmddpEnvironment
from smddp.lightning.stop import StopCallback

__all__ = ["SmddpEnvironment", "StopCallback", "VerifiedCheckpointIO"]
