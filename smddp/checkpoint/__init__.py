"""Checkpoints: everything a run needs to go on, verified byte for byte, never half written.

One checkpoint is one directory, ``step-000000001234``, that is never changed once its manifest stands in it:

* ``<name>.safetensors`` holds the tensors of one part of the state, ``model`` or ``optimizer`` for instance, in the
  safetensors format, under the names that they have in that part's state_dict.
* ``state.json`` holds all the rest: the nesting of the state, its numbers and texts, and where each tensor belongs.
* ``manifest.json`` is written last, names every other file with its size and xxh3_128, and vouches for itself.

What is not named in a valid manifest does not exist. No file is a pickle, and reading one runs no code.
"""

from smddp.checkpoint.checkpointer import Checkpointer
from smddp.checkpoint.manifest import Manifest
from smddp.checkpoint.reader import CheckpointInfo, list_checkpoints

__all__ = ["CheckpointInfo", "Checkpointer", "Manifest", "list_checkpoints"]
