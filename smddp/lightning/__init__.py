"""Lightning on smddp's ranks: ranks under every launcher, a stop with a checkpoint, and verified checkpoints.

Lightning's Trainer runs in any job as it is. With these classes it also finds its ranks under every launcher that smddp
supports, ends a stop with a checkpoint and exit code 75, and refuses a checkpoint that is torn or changed.
"""

from smddp.lightning.checkpoint_io import VerifiedCheckpointIO
from smddp.lightning.environment import SmddpEnvironment
from smddp.lightning.stop import StopCallback

__all__ = ["SmddpEnvironment", "StopCallback", "VerifiedCheckpointIO"]
